"""The two ways to close a gap that heuristics and simple bounds leave.

`solve_full` has a row of the master problem for each item type: up to some hundred
types, however tight. `solve_by_knots` is for thousands of different weights.

Axis letters: K item types, Q cells.
"""

import time
from dataclasses import replace

import numpy as np

from rpopt.exact.column_generation import DualBound, generate
from rpopt.exact.gap_of_one import decide
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.knots import first_knots, refined_knots
from rpopt.exact.master import Master
from rpopt.exact.packer import Packer, pack_part
from rpopt.exact.patterns import PatternPool
from rpopt.exact.search import Search
from rpopt.exact.value_dive import ValueDive
from rpopt.packing.heuristics import best_fit_decreasing
from rpopt.packing.instance import PackingInstance

_DIVES_BEFORE_PROOF = 6
_FIRST_KNOTS, _FIRST_DIVE = 12, 60  # knots
_TAIL_ITEMS, _LARGEST_TAIL = 220, 500
_REPAIRS_PER_LEVEL = 6
_COARSEST, _MOST_COARSE_TYPES = 256, 1200
_SHARE_PER_LEVEL = 0.4  # of the time that is left


def solve_full(search: Search, types: ItemTypes) -> None:
    """Column generation, dives, and the proof that a gap of one cannot be closed."""
    assert search.best is not None
    with Packer(types, types.cells(search.best), search.deadline_s) as packer:
        search.prove_dual(types, packer.bound(search.upper))
        tried: set[int] = set()
        while not search.done:
            for _ in range(_DIVES_BEFORE_PROOF):
                cells = packer.dive(search.goal, search.rng)
                if cells is not None:
                    search.accept("dive", types.solution(cells))
                if search.done:
                    break
            if not search.done and search.goal not in tried:
                tried.add(search.goal)
                _decide_gap(search, types, packer)
        search.statistics.update(
            dives=packer.num_dives,
            pricings=packer.knapsack.num_runs,
            pricing_s=packer.knapsack.seconds_s,
            lp_solves=packer.master.num_solves,
            lp_s=packer.master.seconds_s,
            patterns=len(packer.pool),
        )


def _decide_gap(search: Search, types: ItemTypes, packer: Packer) -> None:
    """Find a packing that meets the bound, or show that there is none."""
    bound = packer.bound(search.upper, converge=True)
    search.prove_dual(types, bound)
    if search.done or search.goal > search.lower:
        return
    assert packer.relaxation is not None
    history = packer.relaxation.history[::-1]
    duals = [b for b in history if b.ratio > bound.ratio - 1][:8]
    verdict = decide(types, search.goal, duals, search.deadline_s)
    search.statistics["gap_of_one"] = verdict.answers
    if verdict.cells is not None:
        search.accept("gap of one", types.solution(verdict.cells))
    claimed = verdict.bound()
    if claimed is not None:
        search.prove(claimed)


def solve_by_knots(search: Search, types: ItemTypes) -> None:
    """Bounds from master problems with more and more knots; dives by their values."""
    assert search.best is not None
    knapsack, pool = Knapsack(types, search.deadline_s), PatternPool(types.num_types)
    pool.add_cells(types.cells(search.best))
    bound: DualBound | None = None
    knot_M, dived_at = first_knots(types, _FIRST_KNOTS), 0
    coarse_tried = False  # it needs the bound of the first knots only
    while not search.done:
        now_s = time.monotonic()
        until_s = now_s + _SHARE_PER_LEVEL * (search.deadline_s - now_s)
        with Master(types, pool, knot_M, deadline_s=search.deadline_s) as master:
            relaxation = generate(
                master,
                knapsack,
                types.demand_K,
                num_fixed=0,
                stop_at=search.upper,
                deadline_s=until_s,
                first=bound,
                converge=True,
            )
            bound = relaxation.bound
            search.prove_dual(types, bound)
            search.statistics.update(knots=knot_M.size, patterns=len(pool))
            if not coarse_tried:
                _pack_coarsely(search)
                coarse_tried = True
            if knot_M.size >= max(_FIRST_DIVE, 2 * dived_at):
                dived_at = knot_M.size
                _dive_down(search, master, knapsack, bound, until_s)
                for _ in range(_REPAIRS_PER_LEVEL):
                    _repair(search, types, bound)
        if relaxation.point is None or not relaxation.converged:
            break
        use_Q = relaxation.point.use_Q
        excess_K = use_Q @ pool.matrix()[: use_Q.size] - types.demand_K
        knot_M, before = refined_knots(types, knot_M, excess_K), knot_M.size
        if knot_M.size == before:
            break
    while not search.done and bound is not None:
        _repair(search, types, bound)


def _pack_coarsely(search: Search) -> None:
    """Pack items rounded up to few different weights, finer and finer.

    What a coarse packing loses is about half a unit per item, so with thousands of
    items it is near the bound, and below it where rows leave some cells to spare. A
    packing stays one with finer units, so each is the start of the next.
    """
    unit = -(-search.instance.capacity // _COARSEST)
    coarse = _rounded_up(search.instance, unit)
    packing = best_fit_decreasing(coarse)
    while not search.done and unit > 1:
        types = ItemTypes.of(coarse)
        if types.num_types > _MOST_COARSE_TYPES:
            break
        with Packer(types, types.cells(packing), search.deadline_s) as packer:
            lower = packer.bound(packing.num_cells).cells
            budget = max(lower, search.goal)
            cells = None
            if budget < min(packing.num_cells, search.upper):
                cells = packer.dive(budget, search.rng)
        if cells is not None:
            packing = types.solution(cells)
            search.accept("coarse dive", packing)
        unit //= 2
        coarse = _rounded_up(search.instance, unit)


def _rounded_up(instance: PackingInstance, unit: int) -> PackingInstance:
    weight_I = -(-instance.weight_I // unit) * unit
    weight_I = np.minimum(weight_I, instance.capacity)
    return replace(instance, weight_I=weight_I, num_ranks=1, row_multiple=1)


def _dive_down(
    search: Search,
    master: Master,
    knapsack: Knapsack,
    bound: DualBound,
    until_s: float,
) -> None:
    """Dive for the goal; where that fails, for one cell more, and so on."""
    types, budget = knapsack.types, search.goal
    dive = ValueDive(
        master=master,
        knapsack=knapsack,
        deadline_s=until_s,
        few_items=_TAIL_ITEMS,
        most_items=_LARGEST_TAIL,
    )
    while not search.done and budget < search.upper:
        state = dive.run(budget, bound)
        tail = None
        if state is not None:
            tail = pack_part(
                types,
                state.residual_K,
                state.left,
                deadline_s=search.deadline_s,
                rng=search.rng,
            )
        if state is None or tail is None:
            budget += 1
        else:
            search.accept("dive by value", types.solution(state.cells + tail))


def _repair(search: Search, types: ItemTypes, bound: DualBound) -> None:
    """Pack the cells worth least, and some at random, into one cell less."""
    assert search.best is not None
    if search.done:
        return
    cells = types.cells(search.best)
    lack_Q = np.array([bound.best - bound.value_K[cell].sum() for cell in cells])
    order = np.argsort(-lack_Q * search.rng.random(lack_Q.size) ** 0.5)
    items = np.cumsum([cells[q].size for q in order])
    size = max(2, int(np.searchsorted(items, _TAIL_ITEMS)))
    chosen = np.concatenate([cells[q] for q in order[:size]])
    packed = pack_part(
        types,
        np.bincount(chosen, minlength=types.num_types),
        min(size, order.size) - 1,
        deadline_s=search.deadline_s,
        rng=search.rng,
    )
    search.statistics["repairs"] = search.statistics.get("repairs", 0) + 1
    if packed is not None:
        rest = [cells[q] for q in order[size:]]
        search.accept("repair", types.solution([*packed, *rest]))
