"""The certificate of a layout, made and checked in integers alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rpopt.certificate import Bound, Certificate
from rpopt.checks import require_feasible
from rpopt.errors import CertificateError
from rpopt.layout import bounds
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout, Plan


def layout_certificate(
    instance: LayoutInstance,
    layout: Layout,
    lower_bounds: Sequence[Bound],
    *,
    termination: str,
    versions: Sequence[tuple[str, str]] = (),
) -> Certificate:
    """Return the certificate of a layout and of lower bounds on J, in ticks.

    Raises
    ------
    InfeasibleError
        When the layout breaks a constraint.
    """
    require_feasible(check(instance, layout), "the layout")
    return Certificate(
        problem="layout",
        instance_digest=instance.digest,
        upper=evaluate(instance, layout).j_ticks,
        witness={"row_I": layout.row_I.tolist(), "rank_I": layout.rank_I.tolist()},
        bounds=tuple(lower_bounds),
        termination=termination,
        versions=(("numpy", np.__version__), *versions),
    )


def witness_layout(certificate: Certificate, instance: LayoutInstance) -> Layout:
    """Return the layout that a certificate holds.

    Raises
    ------
    CertificateError
        When it is no feasible layout of the instance.
    """
    try:
        layout = Layout(
            row_I=np.array(certificate.witness["row_I"]),
            rank_I=np.array(certificate.witness["rank_I"]),
            num_rows=instance.num_rows,
        )
        require_feasible(check(instance, layout), "the witness")
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(f"the witness does not hold: {error}") from error
    return layout


def certified_plan(
    plan: Plan, certificate: Certificate, instance: LayoutInstance
) -> Plan:
    """Return a plan with the layout and the bounds of a certificate.

    Parameters
    ----------
    plan
        The plan whose placement and number of rows the instance was built for.

    Raises
    ------
    CertificateError
        When the certificate's layout is no feasible one of the instance.
    """
    return replace(
        plan,
        layout=witness_layout(certificate, instance),
        layout_bounds=certificate.bounds,
        j_ticks=certificate.upper,
        method="certify",
        termination=certificate.termination,
        versions=certificate.versions,
    )


def recheck(certificate: Certificate, instance: LayoutInstance) -> int:
    """Check a certificate without a solver; return its best arithmetic bound, in ticks.

    The witness is checked and evaluated, and every arithmetic bound is recomputed from
    its evidence. A solver's bound is a claim that cannot be checked this way.

    Raises
    ------
    CertificateError
        When the certificate is about something else, or anything in it does not hold.
    """
    certificate.require_about("layout", instance.digest)
    cost = evaluate(instance, witness_layout(certificate, instance)).j_ticks
    if cost != certificate.upper:
        raise CertificateError(
            f"the witness costs {cost} ticks; the certificate says {certificate.upper}"
        )
    arithmetic = [b for b in certificate.bounds if b.kind == "arithmetic"]
    for bound in arithmetic:
        ticks = bounds.recheck(instance, bound)
        if ticks != bound.value:
            raise CertificateError(
                f"bound {bound.name!r} claims {bound.value} ticks; recomputed they are"
                f" {ticks}"
            )
    return max((bound.value for bound in arithmetic), default=0)
