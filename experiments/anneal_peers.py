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
    instance: LayoutInstance, hint: Layout, *, limit_s: float, seed: int, threads: int
) -> Answer:
    """Minimise J from a hint; fewer than 8 threads leave out parts of the portfolio."""
    if instance.coupling != "step":
        raise InstanceError("the CP-SAT model is for coupling = 'step'")
    began_s = perf_counter()
    model = _Model(instance, hint)
    build_s = perf_counter() - began_s
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = threads
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
        self._in_cell_IK = self._bools(instance.num_cells)
        self._in_group_IG = self._bools(instance.num_groups)
        self._assign()
        waits_G = [self._waits(group) for group in range(instance.num_groups)]
        slowest = self.model.new_int_var(0, self._top, "slowest")
        for shard in range(instance.num_shards):
            waits = [w for ws in waits_G[shard :: instance.num_shards] for w in ws]
            self.model.add(_sum(waits) <= slowest)
        self.model.minimize(slowest)
        self._hint(hint)

    def j(self, value: float) -> float:
        """Return J of an objective value."""
        ticks = value * self._divisor + self.instance.offset_ticks
        return ticks / self.instance.unit_ticks

    def layout(self, solver: cp_model.CpSolver) -> Layout:
        """Return the layout of a solved model."""
        cell_I = [
            next(k for k, var in enumerate(in_cell_K) if solver.boolean_value(var))
            for in_cell_K in self._in_cell_IK
        ]
        group_I, member_I = np.divmod(cell_I, self.instance.shard_size)
        row_I, shard_I = np.divmod(group_I, self.instance.num_shards)
        order = np.argsort(self.instance.shard_of_rank_D, kind="stable")
        rank_I = order[shard_I * self.instance.shard_size + member_I]
        return Layout(row_I=row_I, rank_I=rank_I, num_rows=self.instance.num_rows)

    def _bools(self, count: int) -> list[list[cp_model.IntVar]]:
        items = range(self.instance.num_items)
        return [[self.model.new_bool_var("") for _ in range(count)] for _ in items]

    def _assign(self) -> None:
        """Every item in one cell; no cell too full, none empty."""
        model, instance, size = self.model, self.instance, self.instance.shard_size
        for in_cell_K, in_group_G in zip(
            self._in_cell_IK, self._in_group_IG, strict=True
        ):
            model.add_exactly_one(in_group_G)
            for group, in_group in enumerate(in_group_G):
                cells = in_cell_K[group * size : (group + 1) * size]
                model.add(_sum(cells) == in_group)
        for in_cell_I in zip(*self._in_cell_IK, strict=True):
            model.add_bool_or(in_cell_I)
            model.add(_sum(in_cell_I, instance.weight_I) <= instance.token_cap)
            if (limit := instance.max_samples_per_cell) is not None:
                model.add(_sum(in_cell_I, instance.num_samples_I) <= limit)

    def _waits(self, group: int) -> list[cp_model.IntVar]:
        """Return what a group waits for: attention per class, experts per layer."""
        model, size = self.model, self.instance.shard_size
        waits = []
        for attention_I in self._attention_IC.T:
            waits.append(model.new_int_var(0, self._top, ""))
            for cell in range(group * size, (group + 1) * size):
                in_cell_I = [in_cell_K[cell] for in_cell_K in self._in_cell_IK]
                model.add(_sum(in_cell_I, attention_I) <= waits[-1])
        in_group_I = [in_group_G[group] for in_group_G in self._in_group_IG]
        for layer, top in enumerate(self._top_L.tolist()):
            waits.append(model.new_int_var(0, top, ""))
            for load_I in self._load_ILP[:, layer].T:
                model.add(_sum(in_group_I, load_I) <= waits[-1])
        return waits

    def _hint(self, hint: Layout) -> None:
        group_I, member_I = group_and_member(self.instance, hint)
        cell_I = group_I * self.instance.shard_size + member_I
        for table, chosen_I in (
            (self._in_cell_IK, cell_I),
            (self._in_group_IG, group_I),
        ):
            for variables, chosen in zip(table, chosen_I.tolist(), strict=True):
                for number, variable in enumerate(variables):
                    self.model.add_hint(variable, number == chosen)


def _sum(
    variables: Sequence[cp_model.IntVar], factors: Int64Array | None = None
) -> Any:
    if factors is None:
        return cp_model.LinearExpr.sum(list(variables))
    return cp_model.LinearExpr.weighted_sum(list(variables), factors.tolist())
