"""Certify the covariance form of placement by outer approximation.

The model with tangents in place of the form is solved, the ranks of its solution are
priced exactly, tangents at these ranks are added, and so on: every solve bounds the
optimum from below, every solution from above. As HiGHS is believed for the bound, it is
labelled a solver's; the placement is checked and evaluated in integers.

Axis letters: L MoE layers.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from formulations import placement_covariance as form
from rpopt.certificate import Bound
from rpopt.errors import InstanceError
from rpopt.highs import SolverResult, Termination, compile_pyomo, load_pyomo, solve
from rpopt.placement.covariance import place_covariance
from rpopt.placement.instance_covariance import (
    CovarianceInstance,
    evaluate_covariance,
)
from rpopt.plans import Placement

NAME = "outer approximation"
_ROW_TOLERANCE = 1e-6  # of HiGHS, in every rank's tangents
_RELATIVE = 1e-9  # of the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class CovarianceProof:
    """What is known about one layer.

    Parameters
    ----------
    placement
        Of this layer alone.
    upper
        Its sum of forms, exact.
    bound
        The best claim of HiGHS, a solver's bound; 0 where there is none.
    num_solves
        Models solved.
    termination
        "bound met", "time limit", "tolerances of HiGHS" where its last solution has no
        new tangent and yet the numbers differ, or why HiGHS gave up.
    """

    placement: Placement
    upper: int
    bound: Bound
    num_solves: int
    termination: str

    @property
    def closed(self) -> bool:
        """Whether the numbers meet."""
        return self.bound.value == self.upper


def certify_covariance(
    instance: CovarianceInstance,
    *,
    time_limit_s: float = 60.0,
    progress: Callable[[int, int], None] = lambda lower, upper: None,
) -> tuple[CovarianceProof, ...]:
    """Bound the covariance form of every layer, with equal shares of the time.

    Parameters
    ----------
    instance
        Moments of all layers.
    time_limit_s
        Seconds for everything; what is known by then is returned.
    progress
        Called with the bound and the sum of forms of the layer at hand.

    Raises
    ------
    InstanceError
        For a negative time limit.
    SolverError
        When HiGHS contradicts itself or cannot be started.
    """
    if not time_limit_s >= 0:
        raise InstanceError(f"a time limit of {time_limit_s} s; it must be >= 0")
    deadline_s = time.monotonic() + time_limit_s
    proofs: list[CovarianceProof] = []
    num_layers = len(instance.moment_LEF)
    for layer in range(num_layers):
        share_s = (deadline_s - time.monotonic()) / (num_layers - layer)
        one = replace(instance, moment_LEF=instance.moment_LEF[layer : layer + 1])
        proofs.append(_certify_layer(one, time.monotonic() + share_s, progress))
    return tuple(proofs)


def _certify_layer(
    one: CovarianceInstance, deadline_s: float, progress: Callable[[int, int], None]
) -> CovarianceProof:
    """Solve and cut until the numbers meet or the time is over."""
    _, num_experts, _ = one.moment_LEF.shape
    start = place_covariance(one, Placement.identity(1, num_experts, one.num_ep_ranks))
    model = form.build_outer(one, layer=0)
    form.set_start(model, start.rank_LE[0])
    form.add_cuts_at_solution(model)
    known = CovarianceProof(
        placement=start,
        upper=int(evaluate_covariance(one, start)[0]),
        bound=Bound(name=NAME, kind="solver", value=0),
        num_solves=0,
        termination="time limit",
    )
    while not known.closed and time.monotonic() < deadline_s:
        result = solve(
            compile_pyomo(model, names=False),
            time_limit_s=max(0.0, deadline_s - time.monotonic()),
        )
        num_new = 0
        if result.x is not None:
            load_pyomo(model, result.x)
            num_new = form.add_cuts_at_solution(model)
            known = _with_placement(known, one, form.solution(one, [model]))
        known = _with_claim(known, result, model.unit)
        progress(known.bound.value, known.upper)
        if result.termination is not Termination.OPTIMAL:
            return replace(known, termination=f"HiGHS: {result.termination}")
        if num_new == 0 and not known.closed:
            return replace(known, termination="tolerances of HiGHS")
    return replace(known, termination="bound met") if known.closed else known


def _with_claim(
    known: CovarianceProof, result: SolverResult, unit: int
) -> CovarianceProof:
    """Take over HiGHS' bound if it is better: less its tolerances, rounded up.

    A claim above a checked placement is wrong and proves nothing.
    """
    known = replace(known, num_solves=known.num_solves + 1)
    raw = result.raw_bound
    if raw is None:
        return known
    slack = known.placement.num_ep_ranks * _ROW_TOLERANCE + _RELATIVE * abs(raw)
    value = math.ceil(unit * (raw - slack))
    if not known.bound.value < value <= known.upper:
        return known
    evidence = {
        "raw_bound": raw,
        "unit": unit,
        "status": result.termination.value,
        "model": result.model_digest,
    }
    bound = Bound(name=NAME, kind="solver", value=value, evidence=evidence)
    return replace(known, bound=bound)


def _with_placement(
    known: CovarianceProof, one: CovarianceInstance, found: Placement
) -> CovarianceProof:
    """Take over a placement if it is better."""
    total = int(evaluate_covariance(one, found)[0])
    if total >= known.upper:
        return known
    return replace(known, placement=found, upper=total)
