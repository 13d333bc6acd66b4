"""Packing to proven optimality where possible: cheap methods first, dear ones last.

Axis letters: I items, K item types, Q patterns.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.checks import require_feasible
from rpopt.errors import InstanceError
from rpopt.exact.column_generation import DualBound, generate
from rpopt.exact.diving import Dive, dive_by_value
from rpopt.exact.gap_of_one import decide
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.master import Master
from rpopt.exact.packer import Packer, pack_part
from rpopt.exact.patterns import PatternPool
from rpopt.packing import bounds as room_bounds
from rpopt.packing.heuristics import best_fit_decreasing, first_fit_decreasing
from rpopt.packing.instance import PackingInstance, PackingSolution, check
from rpopt.packing.knapsack import dual_weights
from rpopt.records import Int64Array

Report = Callable[[str, int, int], None]

_FULL_TYPES = 400
_KNOTS = (12, 48)
_TAIL_ITEMS = 220
_DIVES_BEFORE_PROOF = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactPacking:
    """What the exact methods found.

    Parameters
    ----------
    solution
        The best packing; it passed the checker.
    bounds
        Every bound on the number of cells that was proved.
    termination
        "closed": packing and bound meet; "target": a packing within the target was
        found; "target refuted": a bound exceeds the target; "time limit".
    statistics
        Seconds, iterations and sizes of the methods.
    """

    solution: PackingSolution
    bounds: tuple[Bound, ...]
    termination: str
    statistics: Mapping[str, Any]

    @property
    def lower(self) -> int:
        """The largest bound."""
        return max(b.value for b in self.bounds)


def solve_packing(
    instance: PackingInstance,
    *,
    start: PackingSolution | None = None,
    target_cells: int | None = None,
    time_limit_s: float = 60.0,
    progress: Report | None = None,
    seed: int = 0,
) -> ExactPacking:
    """Find the fewest cells, and prove it, walking from cheap methods to dear ones.

    Parameters
    ----------
    instance
        What to pack.
    start
        A feasible packing to begin with.
    target_cells
        Stop at a packing with at most this many cells: for a number of rows, more cells
        than the fewest may be good enough. Stop too when a bound exceeds the target.
    time_limit_s
        Seconds; the call returns within this and 2 s.
    progress
        Called with the name of the method and the bound and cells known, when one of
        the two changes.
    seed
        Of the perturbed dives.

    Raises
    ------
    InfeasibleError
        When the start is not feasible.
    """
    if not time_limit_s >= 0:
        raise InstanceError(f"time_limit_s = {time_limit_s}; it must be at least 0")
    search = _Search(instance, target_cells, time.monotonic(), time_limit_s, progress)
    if start is not None:
        require_feasible(check(instance, start), "the start")
        search.accept("start", start)
    search.rng = np.random.default_rng(seed)
    search.run()
    return search.result()


@dataclass(slots=True)
class _Search:
    """The state of one call of `solve_packing`."""

    instance: PackingInstance
    target: int | None
    begin_s: float
    time_limit_s: float
    progress: Report | None
    rng: np.random.Generator = field(init=False)
    best: PackingSolution | None = None
    bounds: list[Bound] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """When to stop, on the clock of `time.monotonic`."""
        return self.begin_s + self.time_limit_s

    @property
    def lower(self) -> int:
        """The best bound."""
        return max((b.value for b in self.bounds), default=1)

    @property
    def upper(self) -> int:
        """Cells of the best packing."""
        assert self.best is not None
        return self.best.num_cells

    @property
    def goal(self) -> int:
        """The number of cells at which the search may stop."""
        return max(self.lower, self.target or 0)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do, or no time to do it."""
        refuted = self.target is not None and self.lower > self.target
        return self.upper <= self.goal or refuted or time.monotonic() >= self.deadline_s

    def run(self) -> None:
        """Walk from cheap methods to dear ones until the numbers meet."""
        for method in (best_fit_decreasing, first_fit_decreasing):
            self.accept(method.__name__, method(self.instance))
        for bound_method in (room_bounds.l1, room_bounds.l2, room_bounds.dff):
            if self.done:
                return
            self.prove(bound_method(self.instance))
        if self.done:
            return
        types = ItemTypes.of(self.instance)
        self.statistics["types"] = types.num_types
        if types.num_types <= _FULL_TYPES:
            _solve_full(self, types)
        else:
            _solve_by_knots(self, types)

    def accept(self, method: str, solution: PackingSolution) -> None:
        """Take over a packing if it is better."""
        if self.best is None or solution.num_cells < self.upper:
            require_feasible(check(self.instance, solution), f"the packing of {method}")
            self.best = solution
            self._report(method)

    def prove(self, bound: Bound) -> None:
        """Take over a bound."""
        better = bound.value > self.lower
        self.bounds.append(bound)
        if better:
            self._report(bound.name)

    def prove_dual(self, types: ItemTypes, bound: DualBound) -> None:
        """Take over a dual bound, if it is better, with evidence that stands alone."""
        if bound.cells > self.lower:
            self.prove(dual_weights(self.instance, bound.value_K[types.type_I]))

    def result(self) -> ExactPacking:
        """Return what was found."""
        assert self.best is not None
        refuted = self.target is not None and self.lower > self.target
        termination = "time limit"
        if self.upper <= self.lower:
            termination = "closed"
        elif self.upper <= self.goal:
            termination = "target"
        elif refuted:
            termination = "target refuted"
        self.statistics["seconds_s"] = time.monotonic() - self.begin_s
        return ExactPacking(
            solution=self.best,
            bounds=tuple(self.bounds),
            termination=termination,
            statistics=self.statistics,
        )

    def _report(self, method: str) -> None:
        if self.progress is not None and self.best is not None:
            self.progress(method, self.lower, self.upper)


def _solve_full(search: _Search, types: ItemTypes) -> None:
    """Column generation, dives, and the proof that a gap of one is none."""
    assert search.best is not None
    with Packer(types, types.patterns(search.best)) as packer:
        search.prove_dual(types, packer.bound(search.upper, search.deadline_s))
        proof_tried = False
        while not search.done:
            for _ in range(_DIVES_BEFORE_PROOF if not proof_tried else 20):
                cells = packer.dive(search.goal, search.deadline_s, search.rng)
                if cells is not None:
                    search.accept("dive", types.solution(cells))
                if search.done:
                    break
            if not search.done and not proof_tried:
                _decide_gap(search, types, packer)
                proof_tried = True
        search.statistics.update(
            dives=packer.num_dives,
            pricings=packer.knapsack.num_runs,
            pricing_s=packer.knapsack.seconds_s,
            lp_solves=packer.master.num_solves,
            lp_s=packer.master.seconds_s,
            patterns=len(packer.pool),
        )


def _decide_gap(search: _Search, types: ItemTypes, packer: Packer) -> None:
    """Find a packing into as many cells as the bound says, or show that there is none."""
    bound = packer.bound(search.upper, search.deadline_s, converge=True)
    search.prove_dual(types, bound)
    if search.done or search.goal > search.lower:
        return
    assert packer.relaxation is not None
    duals = tuple(
        b for b in packer.relaxation.history[::-1] if b.ratio > bound.ratio - 1
    )[:8]
    verdict = decide(types, search.goal, duals, search.deadline_s)
    search.statistics["gap_of_one"] = verdict.answers
    if verdict.patterns is not None:
        search.accept("gap of one", types.solution(verdict.patterns))
    claimed = verdict.bound()
    if claimed is not None:
        search.prove(claimed)


def _solve_by_knots(search: _Search, types: ItemTypes) -> None:
    """Bound by a small master problem; pack by valuable cells and an exact tail."""
    assert search.best is not None
    knapsack, pool = Knapsack(types), PatternPool(types.num_types)
    pool.add(types.patterns(search.best))
    bound = None
    for knots in _KNOTS:
        master = Master(types, pool, knots)
        try:
            relaxation = generate(
                master,
                knapsack,
                types.demand_K,
                num_fixed=0,
                stop_at=search.upper,
                deadline_s=search.deadline_s,
                first=bound,
                converge=True,
            )
            bound = relaxation.bound
            search.prove_dual(types, bound)
            if search.done:
                return
            if knots == _KNOTS[-1]:
                _pack_by_value(search, types, knapsack, master, bound)
        finally:
            master.close()


def _pack_by_value(
    search: _Search,
    types: ItemTypes,
    knapsack: Knapsack,
    master: Master,
    bound: DualBound,
) -> None:
    budget = search.goal
    while not search.done and budget < search.upper:
        cells = _dive_and_finish(search, types, knapsack, master, bound, budget)
        if cells is None:
            budget += 1
        else:
            search.accept("dive by value", types.solution(cells))
    while not search.done:
        _repair(search, types, bound)


def _dive_and_finish(
    search: _Search,
    types: ItemTypes,
    knapsack: Knapsack,
    master: Master,
    bound: DualBound,
    budget: int,
) -> list[Int64Array] | None:
    dive = Dive(residual_K=types.demand_K, budget=budget)
    deadline_s = search.deadline_s
    kept = dive_by_value(
        master,
        knapsack,
        dive,
        until_items=_TAIL_ITEMS,
        deadline_s=deadline_s,
        rng=search.rng,
        first=bound,
    )
    if not kept:
        return None
    tail = pack_part(
        types, dive.residual_K, dive.left, deadline_s=deadline_s, rng=search.rng
    )
    return None if tail is None else dive.cells + tail


def _repair(search: _Search, types: ItemTypes, bound: DualBound) -> None:
    """Pack some cells of the best packing, those worth least among them, into one less."""
    assert search.best is not None
    pattern_QK = types.patterns(search.best)
    lack_Q = bound.best - pattern_QK @ bound.value_K
    key_Q = lack_Q * search.rng.random(lack_Q.size) ** 0.5
    order = np.argsort(-key_Q)
    items = np.cumsum(pattern_QK[order].sum(axis=1))
    size = max(2, int(np.searchsorted(items, _TAIL_ITEMS)))
    chosen, rest = order[:size], order[size:]
    cells = pack_part(
        types,
        pattern_QK[chosen].sum(axis=0),
        chosen.size - 1,
        deadline_s=search.deadline_s,
        rng=search.rng,
    )
    search.statistics["repairs"] = search.statistics.get("repairs", 0) + 1
    if cells is not None:
        search.accept("repair", types.solution([*cells, *pattern_QK[rest]]))
