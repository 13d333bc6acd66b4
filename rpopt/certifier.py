"""Certify: bounds from cheap to dear, until they meet the best solution.

A bound that can be recomputed in integers is *arithmetic*; what HiGHS says is labelled
*solver*. Closed means that the numbers meet.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from formulations import layout_makespan, placement_makespan
from rpopt.certificate import Bound, Certificate
from rpopt.checks import require_feasible
from rpopt.errors import InstanceError, SolverError
from rpopt.exact.layout_leaders import leader_bound
from rpopt.exact.solve import solve_packing
from rpopt.highs import (
    LinearModel,
    SolverResult,
    compile_pyomo,
    load_pyomo,
    safe_bound,
    solve,
    start_of,
)
from rpopt.highs import Progress as SolverProgress
from rpopt.layout import bounds as layout_bounds
from rpopt.layout import enumeration
from rpopt.layout.baselines import baselines
from rpopt.layout.certificates import layout_certificate
from rpopt.layout.evaluate import evaluate as evaluate_layout
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance, PackingSolution
from rpopt.packing.instance import check as check_packing
from rpopt.packing.rows import certify_rows, rows_certificate
from rpopt.placement import partition
from rpopt.placement.certificates import certify_placement
from rpopt.placement.heuristics import place
from rpopt.placement.instance import PlacementInstance
from rpopt.placement.instance import check as check_placement
from rpopt.placement.instance import evaluate as evaluate_placement
from rpopt.placement.search import improve
from rpopt.plans import Layout, Placement

Progress = Callable[[int, int], None]
"""Called with the best lower bound and the best cost known."""

_EXACT_SHARE = 0.75
"""Of the time for a packing, what the heuristics leave to the exact methods."""
_MILP = "makespan MILP"
SEARCH_EFFORT, _SEARCHES = 1_000, 100
"""Kicks of a placement search, which does not look at the clock, and searches."""
MOST_BINARIES = 6_000
"""MILPs with more binaries than this are not worth building."""


def certify(
    instance: PackingInstance | PlacementInstance | LayoutInstance,
    *,
    start: PackingSolution | Placement | Layout | None = None,
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Certificate, ...]:
    """Certify an instance: one certificate, or one per layer of a placement.

    Parameters
    ----------
    instance
        An instance of one of the three problems.
    start
        A feasible solution to begin with, of the kind that belongs to the instance.
    time_limit_s
        Seconds for everything; what is known by then is returned.
    seed
        Of the searches.
    progress
        Called with the best lower bound and the best cost, when one of them changes.

    Raises
    ------
    InstanceError
        For a negative time limit or a start of another kind.
    InfeasibleError
        For a start that breaks a constraint; the message names it.
    """
    if not time_limit_s >= 0:
        raise InstanceError(f"a time limit of {time_limit_s} s; it must be >= 0")
    for kind, solution_kind, method in _METHODS:
        if isinstance(instance, kind):
            if start is not None and not isinstance(start, solution_kind):
                raise InstanceError(
                    f"the start is a {type(start).__name__}; a {kind.__name__} starts"
                    f" from a {solution_kind.__name__}"
                )
            deadline_s = time.monotonic() + time_limit_s
            report = _narrowing(progress or (lambda lower, upper: None))
            return method(instance, start, deadline_s, seed, report)
    raise InstanceError(f"a {type(instance).__name__} is no problem to certify")


def certify_packing(
    instance: PackingInstance,
    start: PackingSolution | None,
    deadline_s: float,
    seed: int,
    progress: Progress,
) -> tuple[Certificate, ...]:
    """Certify the number of rows; each refuted multiple raises the next target."""
    if start is not None:
        require_feasible(check_packing(instance, start), "the start")
    hurry_s = deadline_s - _EXACT_SHARE * _left_s(deadline_s)
    known = certify_rows(instance, deadline_s=hurry_s)
    progress(known.lower, known.upper)
    best = PackingSolution(cell_I=np.array(known.witness["cell_I"]))
    if start is not None and start.num_cells < best.num_cells:
        best = start
        known = rows_certificate(instance, best, _cell_bounds(known))
    bounds = _cell_bounds(known)
    while not known.closed and time.monotonic() < deadline_s:
        found = solve_packing(
            instance,
            start=best,
            target_cells=known.lower * instance.num_ranks,
            time_limit_s=_left_s(deadline_s),
            progress=lambda _, lower, upper: progress(
                instance.rows_for(lower), instance.rows_for(upper)
            ),
            seed=seed,
        )
        best, bounds = found.solution, [*bounds, *_new(bounds, found.bounds)]
        bounds = _standing(bounds, best.num_cells)
        gave_up = found.termination in ("time limit", "failure")
        ended = found.termination if gave_up else None
        known = rows_certificate(instance, best, bounds, termination=ended)
        progress(known.lower, known.upper)
        if gave_up:
            break
    return (known,)


def certify_placements(
    instance: PlacementInstance,
    start: Placement | None,
    deadline_s: float,
    seed: int,
    progress: Progress,
) -> tuple[Certificate, ...]:
    """Certify every layer, the open ones with equal shares of the time."""
    placement = place(instance, seed=seed)
    if start is not None:
        require_feasible(check_placement(instance, start), "the start")
        placement = _better_layers(instance, placement, start)
    certificates = list(certify_placement(instance, placement))
    lower, upper = (
        sum(c.lower for c in certificates),
        sum(c.upper for c in certificates),
    )
    progress(lower, upper)
    still_open = [c.witness["layer"] for c in certificates if not c.closed]
    for count, layer in enumerate(still_open):
        left_s = _left_s(deadline_s)
        if left_s == 0:
            break
        others = certificates[:layer] + certificates[layer + 1 :]
        certificates[layer] = _certify_layer(
            instance,
            certificates[layer],
            time.monotonic() + left_s / (len(still_open) - count),
            seed,
            _together_with(others, progress),
        )
    return tuple(certificates)


def _certify_layer(
    instance: PlacementInstance,
    known: Certificate,
    deadline_s: float,
    seed: int,
    progress: Progress,
) -> Certificate:
    """Certify a layer: search, the partition bound, more search, a MILP."""

    def half_s() -> float:
        return deadline_s - _left_s(deadline_s) / 2

    known = _searched(instance, known, seed)
    progress(known.lower, known.upper)
    if not known.closed:
        known = _partitioned(instance, known, half_s(), progress)
    small = instance.load_LE.shape[1] * instance.num_ep_ranks <= MOST_BINARIES
    until_s = half_s() if small else deadline_s
    for more in range(1, _SEARCHES):
        if known.closed or time.monotonic() >= until_s:
            break
        known = _searched(instance, known, seed + more)
        progress(known.lower, known.upper)
    if small and not known.closed and _left_s(deadline_s) > 0:
        known = _solve_layer(instance, known, deadline_s, progress)
        progress(known.lower, known.upper)
    return known


def certify_layout(
    instance: LayoutInstance,
    start: Layout | None,
    deadline_s: float,
    seed: int,
    progress: Progress,
) -> tuple[Certificate, ...]:
    """Certify J: exact bounds, enumeration of few items, leader bound, a MILP."""
    layouts = [] if start is None else [start]
    if start is None:
        packed = certify_rows(_packing_of(instance), deadline_s=deadline_s)
        cell_I = np.array(packed.witness["cell_I"])
        layouts = list(baselines(instance, cell_I).values())
    best = min(layouts, key=lambda layout: evaluate_layout(instance, layout).j_ticks)
    bounds = list(layout_bounds.layout_bounds(instance))
    known = layout_certificate(instance, best, bounds, termination="exact bounds")
    progress(known.lower, known.upper)
    small = instance.num_items * instance.num_cells <= MOST_BINARIES
    left_s = _left_s(deadline_s)
    if not known.closed and left_s > 0:
        known, best = _enumerated(instance, known, best, deadline_s, progress)
        progress(known.lower, known.upper)
    left_s = _left_s(deadline_s)
    if not known.closed and left_s > 0:
        share_s = left_s / 4 if small else left_s
        known = _with_leaders(instance, known, best, share_s, progress)
        progress(known.lower, known.upper)
    if small and not known.closed and _left_s(deadline_s) > 0:
        known = _solve_layout(instance, known, best, deadline_s, progress)
        progress(known.lower, known.upper)
    return (known,)


def _with_leaders(
    instance: LayoutInstance,
    known: Certificate,
    best: Layout,
    time_limit_s: float,
    progress: Progress,
) -> Certificate:
    """Add the leader bound, if it is better than what is known."""
    try:
        bound = leader_bound(
            instance,
            floor=known.lower,
            time_limit_s=time_limit_s,
            on_bound=lambda ticks: progress(ticks, known.upper),
        )
    except SolverError as error:
        return _failed(known, error)
    bounds = known.bounds if bound is None else (*known.bounds, bound)
    return layout_certificate(instance, best, bounds, termination="leader bound")


def _enumerated(
    instance: LayoutInstance,
    known: Certificate,
    best: Layout,
    deadline_s: float,
    progress: Progress,
) -> tuple[Certificate, Layout]:
    """Add what the enumeration of a few items finds, where there is time for it."""
    found = enumeration.enumeration(
        instance,
        best,
        lower=known.lower,
        most_steps=int(_left_s(deadline_s) * enumeration.STEPS_PER_S),
        deadline_s=deadline_s,
        on_bound=lambda ticks: progress(ticks, known.upper),
    )
    if found is None:
        return known, best
    best, bound = found
    ticks = evaluate_layout(instance, best).j_ticks
    bounds = _standing([*known.bounds, bound], ticks)
    known = layout_certificate(instance, best, bounds, termination=bound.name)
    return known, best


_METHODS: tuple[tuple[type[Any], type[Any], Any], ...] = (
    (PackingInstance, PackingSolution, certify_packing),
    (PlacementInstance, Placement, certify_placements),
    (LayoutInstance, Layout, certify_layout),
)


def _solve_layer(
    instance: PlacementInstance,
    known: Certificate,
    deadline_s: float,
    progress: Progress,
) -> Certificate:
    """Add the claim of HiGHS, and its placement if it is better, to one layer."""
    layer = known.witness["layer"]
    model = placement_makespan.build(instance, layer=layer)
    try:
        arrays = compile_pyomo(model, integral_objective=True)
        tell = _claims(arrays, lambda bound: progress(bound, known.upper))
        result = solve(arrays, time_limit_s=_left_s(deadline_s), on_progress=tell)
    except SolverError as error:
        return _failed(known, error)
    if result.x is not None:
        load_pyomo(model, result.x)
        known = _with_ranks(instance, known, placement_makespan.rank_of_expert(model))
    return _with_claim(known, result, result.bound)


def _solve_layout(
    instance: LayoutInstance,
    known: Certificate,
    best: Layout,
    deadline_s: float,
    progress: Progress,
) -> Certificate:
    """Add the claim of HiGHS, and its layout if it is better."""
    model = layout_makespan.build(instance)
    layout_makespan.set_start(instance, model, best)
    ticks = partial(layout_makespan.ticks, instance, model)
    try:
        arrays = compile_pyomo(model, integral_objective=True)
        result = solve(
            arrays,
            time_limit_s=_left_s(deadline_s),
            start=start_of(model),
            presolve=False,  # with presolve, HiGHS misreads a start
            on_progress=_claims(arrays, lambda b: progress(ticks(b), known.upper)),
        )
    except SolverError as error:
        return _failed(known, error)
    if result.x is not None:
        load_pyomo(model, result.x)
        found = layout_makespan.solution(instance, model)
        best = min((best, found), key=lambda x: evaluate_layout(instance, x).j_ticks)
        bounds = _standing(known.bounds, evaluate_layout(instance, best).j_ticks)
        known = layout_certificate(
            instance, best, bounds, termination=known.termination
        )
    claim = None if result.bound is None else ticks(int(result.bound))
    return _with_claim(known, result, claim)


def _with_claim(
    known: Certificate, result: SolverResult, claim: float | None
) -> Certificate:
    """Add the bound that HiGHS claims, labelled as its claim, if it claims one."""
    bounds = list(known.bounds)
    if claim is not None:
        evidence = {
            "raw_bound": result.raw_bound,
            "status": result.termination.value,
            "start": str(result.start_status),
            "model": result.model_digest,
        }
        value = int(claim)
        bounds.append(Bound(name=_MILP, kind="solver", value=value, evidence=evidence))
    return replace(
        known,
        bounds=tuple(_standing(bounds, known.upper)),
        termination=f"{_MILP}: {result.termination}",
        versions=(*known.versions, *result.versions),
    )


def _claims(
    model: LinearModel, tell: Callable[[int], None]
) -> Callable[[SolverProgress], None]:
    """Return what hears the bounds that HiGHS claims while it runs, rounded.

    Its incumbents are not told: a cost counts when the evaluator has seen the solution.
    """

    def hear(event: SolverProgress) -> None:
        bound = safe_bound(model, event.lower)
        if bound is not None:
            tell(int(bound))

    return hear


def _together_with(others: Sequence[Certificate], progress: Progress) -> Progress:
    """Return what hears the numbers of one layer and tells those of all."""
    lower, upper = sum(c.lower for c in others), sum(c.upper for c in others)
    return lambda one_lower, one_upper: progress(lower + one_lower, upper + one_upper)


def _narrowing(tell: Progress) -> Progress:
    """Return what hears numbers and tells the best so far, when one of them changes."""
    told: list[tuple[int, int]] = []

    def hear(lower: int, upper: int) -> None:
        before = told[-1] if told else (lower, upper)
        upper = min(upper, before[1])
        lower = max(before[0], lower) if lower <= upper else before[0]
        if [(lower, upper)] != told[-1:]:
            told.append((lower, upper))
            tell(lower, upper)

    return hear


def _standing(bounds: Sequence[Bound], upper: int) -> list[Bound]:
    """Return the bounds without the claims that a checked solution refutes.

    Such a claim is wrong, so it proves nothing at all: cut down to the solution it
    would close a certificate that nothing closes.
    """
    return [b for b in bounds if b.kind == "arithmetic" or b.value <= upper]


def _failed(known: Certificate, error: SolverError) -> Certificate:
    reason = str(error).partition("\n")[0]
    return replace(known, termination=f"{known.termination}; HiGHS failed: {reason}")


def _searched(
    instance: PlacementInstance, known: Certificate, seed: int
) -> Certificate:
    """Search for a better placement of a layer, from the one that is known."""
    slot_LE = np.array([known.witness["slot_E"]])
    start = Placement(slot_LE=slot_LE, num_ep_ranks=instance.num_ep_ranks)
    one = _one_layer(instance, known)
    found = improve(one, start, seed=seed, effort=SEARCH_EFFORT)
    return _with_ranks(instance, known, found.rank_LE[0].tolist())


def _partitioned(
    instance: PlacementInstance,
    known: Certificate,
    deadline_s: float,
    progress: Progress,
) -> Certificate:
    """Add the partition bound, and the better placements that its search finds."""
    findings = partition.narrow(
        instance,
        known.witness["layer"],
        lower=known.lower,
        upper=known.upper,
        deadline_s=deadline_s,
    )
    first = len(known.bounds)
    for found in findings:
        if isinstance(found, Bound):
            known = replace(known, bounds=(*known.bounds[:first], found))
        else:
            known = _with_ranks(instance, known, found.tolist())
        progress(known.lower, known.upper)
    return replace(known, termination="bound met" if known.closed else partition.NAME)


def _with_ranks(
    instance: PlacementInstance, known: Certificate, rank_E: Sequence[int]
) -> Certificate:
    """Take over a placement of a layer, the rank of each expert, if it is better."""
    found = Placement.from_ranks(np.array([rank_E]), instance.num_ep_ranks)
    one = _one_layer(instance, known)
    require_feasible(check_placement(one, found), "the placement found")
    peak = int(evaluate_placement(one, found).peak_L[0])
    if peak >= known.upper:
        return known
    witness = {"layer": known.witness["layer"], "slot_E": found.slot_LE[0].tolist()}
    termination = "bound met" if peak == known.lower else known.termination
    return replace(known, upper=peak, witness=witness, termination=termination)


def _one_layer(instance: PlacementInstance, known: Certificate) -> PlacementInstance:
    layer = known.witness["layer"]
    return replace(instance, load_LE=instance.load_LE[layer : layer + 1])


def _better_layers(
    instance: PlacementInstance, first: Placement, second: Placement
) -> Placement:
    peak_1L = evaluate_placement(instance, first).peak_L
    peak_2L = evaluate_placement(instance, second).peak_L
    slot_LE = np.where((peak_2L < peak_1L)[:, None], second.slot_LE, first.slot_LE)
    return Placement(slot_LE=slot_LE, num_ep_ranks=instance.num_ep_ranks)


def _packing_of(instance: LayoutInstance) -> PackingInstance:
    return PackingInstance(
        weight_I=instance.weight_I,
        capacity=instance.token_cap,
        num_samples_I=instance.num_samples_I,
        max_samples_per_cell=instance.max_samples_per_cell,
        num_ranks=instance.num_ranks,
    )


def _cell_bounds(certificate: Certificate) -> list[Bound]:
    """Return the bounds on the cells behind the bounds on the rows."""
    return [
        replace(b, value=b.evidence["cells"], evidence=b.evidence["method"])
        for b in certificate.bounds
    ]


def _new(known: list[Bound], found: tuple[Bound, ...]) -> list[Bound]:
    return [bound for bound in found if bound not in known]


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
