"""Recheck plans and certificates against their window: no solver, no torch.

Everything is rebuilt from the window: items, instances, rounded costs. The solution is
checked and evaluated again, and every arithmetic bound is recomputed from its evidence.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import rpopt.layout.bounds
import rpopt.layout.certificates
import rpopt.packing.rows
import rpopt.placement.bounds
import rpopt.placement.certificates
from rpopt.certificate import Bound, Certificate
from rpopt.checks import require_feasible
from rpopt.errors import CertificateError, InfeasibleError, InstanceError
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.instance import check as check_layout
from rpopt.packing.instance import PackingInstance
from rpopt.placement.instance import PlacementInstance
from rpopt.placement.instance import check as check_placement
from rpopt.placement.instance import evaluate as evaluate_placement
from rpopt.plans import Plan
from rpopt.problems import WindowProblems
from rpopt.window import Window

Instance = TypeVar("Instance")


def verify_plan(window: Window, plan: Plan) -> None:
    """Recheck a plan against its window.

    Raises
    ------
    MismatchError
        When the plan is for another window.
    CertificateError
        When a constraint is broken, or a number or an arithmetic bound does not hold.
    """
    plan.require_window(window)
    try:
        problems = WindowProblems(window, plan.topology, plan.rules, plan.cost)
        _verify_rows(problems, plan)
        _verify_placement(problems, plan)
        _verify_layout(problems, plan)
    except (InstanceError, InfeasibleError) as error:
        raise CertificateError(f"the plan does not hold: {error}") from error


def verify_certificate(instance: Any, certificate: Certificate) -> int:
    """Recheck a certificate against its instance; return its best arithmetic bound.

    Raises
    ------
    CertificateError
        When the certificate is about something else, or anything in it does not hold.
    """
    for kind, recheck in _RECHECKS:
        if isinstance(instance, kind):
            return recheck(certificate, instance)
    raise CertificateError(
        f"a certificate is checked against an instance, not a {type(instance).__name__}"
    )


_RECHECKS: tuple[tuple[type[Any], Callable[[Certificate, Any], int]], ...] = (
    (PackingInstance, rpopt.packing.rows.recheck),
    (PlacementInstance, rpopt.placement.certificates.recheck),
    (LayoutInstance, rpopt.layout.certificates.recheck),
)


def _verify_rows(problems: WindowProblems, plan: Plan) -> None:
    if not plan.rows.bounds or not plan.layout_bounds:
        raise CertificateError(
            f"the plan holds {len(plan.rows.bounds)} bounds on the rows and"
            f" {len(plan.layout_bounds)} on J; at least one of each is needed"
        )
    rpopt.packing.rows.recheck(plan.rows, problems.packing)
    if plan.layout.num_rows != plan.rows.upper:
        raise CertificateError(
            f"the layout has {plan.layout.num_rows} rows, the certificate"
            f" {plan.rows.upper}"
        )


def _verify_placement(problems: WindowProblems, plan: Plan) -> None:
    instance = problems.placement
    if instance is None or plan.placement is None:
        if instance is not None or plan.placement is not None or plan.placement_bounds:
            raise CertificateError(
                "only one of window and plan has routing: the placement does not belong"
                " to this window"
            )
        return
    require_feasible(check_placement(instance, plan.placement), "the placement")
    layers = [bound.evidence.get("layer") for bound in plan.placement_bounds]
    if layers != list(range(instance.load_LE.shape[0])):
        raise CertificateError(
            f"the plan bounds the peaks of layers {layers}; one bound per layer is"
            f" needed, for layers 0 to {instance.load_LE.shape[0] - 1} in order"
        )
    recheck_bounds(instance, plan.placement_bounds, rpopt.placement.bounds.recheck)
    peak_L = evaluate_placement(instance, plan.placement).peak_L
    for bound, peak in zip(plan.placement_bounds, peak_L.tolist(), strict=True):
        if bound.value > peak:
            raise CertificateError(
                f"the bound {bound.value} of layer {bound.evidence['layer']} exceeds"
                f" the peak {peak}"
            )


def _verify_layout(problems: WindowProblems, plan: Plan) -> None:
    instance = problems.layout(plan.placement, plan.layout.num_rows)
    require_feasible(check_layout(instance, plan.layout), "the layout")
    found = evaluate(instance, plan.layout)
    if (found.j_ticks, found.unit_ticks) != (plan.j_ticks, plan.unit_ticks):
        raise CertificateError(
            f"the plan says J = {plan.j_ticks} / {plan.unit_ticks} ticks; its layout"
            f" costs {found.j_ticks} / {found.unit_ticks}"
        )
    recheck_bounds(instance, plan.layout_bounds, rpopt.layout.bounds.recheck)
    if plan.lower_ticks > plan.j_ticks:
        raise CertificateError(
            f"a layout bound of {plan.lower_ticks} ticks exceeds J = {plan.j_ticks}"
        )


def recheck_bounds(
    instance: Instance,
    bounds: tuple[Bound, ...],
    recompute: Callable[[Instance, Bound], int],
) -> None:
    """Recompute every arithmetic bound of an instance.

    Raises
    ------
    CertificateError
        When a bound claims more, or anything else, than its evidence gives.
    """
    for bound in bounds:
        if bound.kind != "arithmetic":
            continue
        value = recompute(instance, bound)
        if value != bound.value:
            raise CertificateError(
                f"bound {bound.name!r} claims {bound.value}; recomputed it is {value}"
            )
