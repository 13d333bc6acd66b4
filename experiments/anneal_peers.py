"""OR-Tools CP-SAT on the layout problem, as a peer of the annealing.

Costs are divided by one number and rounded down, so that every sum stays below 2**30:
CP-SAT's accumulators are known to overflow beyond 2**31. Rounding down keeps its lower
bound a lower bound. The answer is evaluated on the exact costs.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, G groups, K cells
(K = group x h + place in the group), R rows, S shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from rpopt.errors import InstanceError
from rpopt.layout.evaluate import evaluate, group_and_member
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array

_LARGEST_SUM = 2**30
_WORKERS = 8  # fewer would leave out parts of the portfolio


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What CP-SAT found.

    Parameters
    ----------
    layout
        The best layout; None when it found none.
    bound
        Its lower bound on J.
    status
        Its own word for the outcome.
    build_s
        Seconds to build the model, not counted in the limit.
    model_j
        J as the model's rounded costs see the layout.
    """

    layout: Layout | None
    bound: float
    status: str
    build_s: float
    model_j: float | None


def cp_sat(
    instance: LayoutInstance, hint: Layout, *, limit_s: float, seed: int
) -> Answer:
    """Minimise J from a hint."""
    if instance.coupling != "step":
        raise InstanceError("the CP-SAT model is for coupling = 'step'")
    began_s = perf_counter()
    model = _Model(instance, hint)
    build_s = perf_counter() - began_s
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = _WORKERS
    solver.parameters.random_seed = seed
    status = solver.solve(model.model)
    layout, model_j = None, None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        layout, model_j = model.layout(solver), model.j(solver.objective_value)
    return Answer(
        layout=layout,
        bound=model.j(max(0.0, solver.best_objective_bound)),
        status=solver.status_name(status),
        build_s=build_s,
        model_j=model_j,
    )


class _Model:
    """Items to cells; groups wait for their largest cell and fullest EP rank."""

    def __init__(self, instance: LayoutInstance, hint: Layout) -> None:
        self.instance, self.model = instance, cp_model.CpModel()
        upper_ticks = evaluate(instance, hint).j_ticks - instance.offset_ticks
        load_ILP = instance.load_ILP * instance.layer_weight_ticks_L[:, None]
        peak_L = np.minimum(load_ILP.sum(axis=0).max(axis=1), upper_ticks)
        waits = instance.num_rows * (int(peak_L.sum()) + upper_ticks)
        largest = max(waits, *instance.attention_ticks_IC.sum(axis=0).tolist())
        self._divisor = -(-largest // _LARGEST_SUM)
        self._attention_IC = instance.attention_ticks_IC // self._divisor
        self._load_ILP = load_ILP // self._divisor
        self._top, self._top_L = upper_ticks // self._divisor, peak_L // self._divisor
        self._assign()
        self._limit()
        wait_G = [self._wait(group) for group in range(instance.num_groups)]
        slowest = self.model.new_int_var(0, self._top, "slowest")
        for shard in range(instance.num_shards):
            self.model.add(sum(wait_G[shard :: instance.num_shards], []) <= slowest)
        self.model.minimize(slowest)
        self._hint(hint)

    def j(self, value: float) -> float:
        """Return J of an objective value."""
        ticks = value * self._divisor + self.instance.offset_ticks
        return ticks / self.instance.unit_ticks
