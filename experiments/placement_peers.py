"""Peers of the certifier on the placement of one layer: OR-Tools CP-SAT and HiGHS.

Both solve the equal-cardinality makespan model and know the mean as a bound. CP-SAT
gets the placement of LPT as a hint.
"""

from dataclasses import dataclass
from time import perf_counter

from ortools.sat.python import cp_model

from formulations import placement_makespan
from rpopt.highs import compile_pyomo, solve
from rpopt.placement.heuristics import lpt
from rpopt.placement.instance import PlacementInstance

_WORKERS = 8  # fewer would leave out parts of the portfolio


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a peer claims; None for the peak when it found no placement."""

    peak: int | None
    bound: int
    runtime_s: float


def cp_sat(instance: PlacementInstance, *, limit_s: float, seed: int) -> Answer:
    """Place the one layer of the instance."""
    began_s = perf_counter()
    model = cp_model.CpModel()
    load_E = instance.load_LE[0].tolist()
    ranks = range(instance.num_ep_ranks)
    hint_E = lpt(instance).rank_LE[0].tolist()
    x_EP = [[model.new_bool_var("") for _ in ranks] for _ in load_E]
    peak = model.new_int_var(-(-sum(load_E) // len(ranks)), sum(load_E), "peak")
    for row, hint in zip(x_EP, hint_E, strict=True):
        model.add_exactly_one(row)
        for rank, x in enumerate(row):
            model.add_hint(x, rank == hint)
    for rank in ranks:
        column = [row[rank] for row in x_EP]
        model.add(sum(column) == instance.experts_per_rank)
        terms = zip(load_E, column, strict=True)
        model.add(sum(load * x for load, x in terms) <= peak)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = _WORKERS
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        peak=round(solver.objective_value) if found else None,
        bound=round(solver.best_objective_bound),
        runtime_s=perf_counter() - began_s,
    )


def highs(instance: PlacementInstance, *, limit_s: float) -> Answer:
    """Place the one layer of the instance; building the model is not counted."""
    model = placement_makespan.build(instance, layer=0)
    arrays = compile_pyomo(model, integral_objective=True)
    result = solve(arrays, time_limit_s=limit_s)
    return Answer(
        peak=None if result.objective is None else int(result.objective),
        bound=0 if result.bound is None else int(result.bound),
        runtime_s=result.runtime_s,
    )
