"""The certificate of the number of rows, made and checked in integers alone.

Rows come in multiples of `row_multiple` and hold `num_ranks` cells each, so a bound on
the cells closes the certificate as soon as it crosses the last multiple. With both
equal to 1, rows are cells: plain bin packing.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rpopt.certificate import Bound, Certificate
from rpopt.checks import require_feasible
from rpopt.errors import CertificateError
from rpopt.packing import bounds
from rpopt.packing.heuristics import best_fit_decreasing, improve
from rpopt.packing.instance import PackingInstance, PackingSolution, check, evaluate


def certify_rows(
    instance: PackingInstance, *, deadline_s: float = math.inf
) -> Certificate:
    """Return the certificate that bounds and heuristics without a solver give.

    Both go from cheap to dear and stop as soon as the numbers of rows meet. From the
    deadline on (`time.monotonic`) no more than the cheapest of each is tried.
    """
    solution = best_fit_decreasing(instance)
    upper = evaluate(instance, solution).num_rows
    tried: list[Bound] = []
    for method in bounds.METHODS.values():
        tried.append(method(instance))
        met = instance.rows_for(tried[-1].value) == upper
        if met or time.monotonic() >= deadline_s:
            break
    else:
        lower = max(bound.value for bound in tried)
        solution = improve(instance, solution, lower=lower, deadline_s=deadline_s)
    ended = "time limit" if time.monotonic() >= deadline_s else None
    return rows_certificate(instance, solution, tried, termination=ended)


def rows_certificate(
    instance: PackingInstance,
    solution: PackingSolution,
    cell_bounds: Sequence[Bound],
    *,
    termination: str | None = None,
    versions: Sequence[tuple[str, str]] = (),
) -> Certificate:
    """Return the certificate of a packing and of lower bounds on the cells.

    Parameters
    ----------
    termination
        Why the search ended where the numbers do not meet. When the rows have more
        cells than there are items, a note is added: the number of rows holds, but a
        layout needs that many dummies (`items.add_dummies`).
    versions
        Pairs (package, version) that took part beside NumPy.

    Raises
    ------
    InfeasibleError
        When the packing breaks a constraint.
    """
    require_feasible(check(instance, solution), "the packing")
    upper = evaluate(instance, solution).num_rows
    row_bounds = tuple(in_rows(instance, bound) for bound in cell_bounds)
    if any(bound.value == upper for bound in row_bounds):
        termination = "bound met"
    elif termination is None:
        termination = "every bound and heuristic was tried"
    num_cells = upper * instance.num_ranks
    if num_cells > instance.num_items:
        termination += (
            f"; {instance.num_items} items cannot fill {num_cells} cells, a layout"
            f" needs {num_cells - instance.num_items} dummies"
        )
    return Certificate(
        problem="rows",
        instance_digest=instance.digest,
        upper=upper,
        witness={"cell_I": solution.cell_I.tolist()},
        bounds=row_bounds,
        termination=termination,
        versions=(("numpy", np.__version__), *versions),
    )


def in_rows(instance: PackingInstance, bound: Bound) -> Bound:
    """Turn a bound on the cells into one on the rows, its evidence kept."""
    evidence = {"cells": bound.value, "method": bound.evidence}
    return replace(bound, value=instance.rows_for(bound.value), evidence=evidence)


def recheck(certificate: Certificate, instance: PackingInstance) -> int:
    """Check a certificate without a solver; return its best arithmetic bound, in rows.

    The witness is checked and counted, and every arithmetic bound is recomputed from
    its evidence. A solver's bound is a claim that cannot be checked this way.

    Raises
    ------
    CertificateError
        When the certificate is about something else, or anything in it does not hold.
    """
    certificate.require_about("rows", instance.digest)
    _recheck_witness(certificate, instance)
    arithmetic = [b for b in certificate.bounds if b.kind == "arithmetic"]
    for bound in arithmetic:
        _recheck_bound(bound, instance)
    return max((bound.value for bound in arithmetic), default=0)


def _recheck_witness(certificate: Certificate, instance: PackingInstance) -> None:
    try:
        solution = PackingSolution(cell_I=certificate.witness["cell_I"])
        require_feasible(check(instance, solution), "the witness")
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(f"the witness does not hold: {error}") from error
    rows = evaluate(instance, solution).num_rows
    if rows != certificate.upper:
        raise CertificateError(
            f"the witness needs {rows} rows; the certificate says {certificate.upper}"
        )


def _recheck_bound(bound: Bound, instance: PackingInstance) -> None:
    try:
        claimed, method = bound.evidence["cells"], bound.evidence["method"]
    except (LookupError, TypeError) as error:
        raise CertificateError(f"bound {bound.name!r} lacks evidence") from error
    cells = bounds.recheck(instance, replace(bound, evidence=method))
    if (claimed, bound.value) != (cells, instance.rows_for(cells)):
        raise CertificateError(
            f"bound {bound.name!r} claims {claimed} cells and {bound.value} rows;"
            f" recomputed they are {cells} and {instance.rows_for(cells)}"
        )
