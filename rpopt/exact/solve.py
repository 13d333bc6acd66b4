"""Packing to proven optimality where possible: cheap methods first, dear ones last."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.checks import require_feasible
from rpopt.errors import InstanceError, SolverError
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import load_kernels
from rpopt.exact.search import Report, Search
from rpopt.exact.strategies import solve_by_knots, solve_full
from rpopt.packing import bounds
from rpopt.packing.heuristics import (
    best_fit_decreasing,
    first_fit_decreasing,
    improve,
)
from rpopt.packing.instance import PackingInstance, PackingSolution, check
from rpopt.stop import OutOfTimeError

_SMALL_GAP = 4  # cells: then dearer heuristics are worth their time
_IMPROVE_SHARE = 0.25  # of the time that is left
_FULL_TYPES = 400


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
        A feasible packing to begin with; it stands in for the dearer heuristics.
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
    search = Search(
        instance=instance,
        target=target_cells,
        deadline_s=time.monotonic() + time_limit_s,
        progress=progress,
        rng=np.random.default_rng(seed),
    )
    if start is not None:
        require_feasible(check(instance, start), "the start")
        search.accept("start", start)
    begin_s = time.monotonic()
    _run(search)
    search.statistics["seconds_s"] = time.monotonic() - begin_s
    return _result(search)


def _run(search: Search) -> None:
    """Walk from cheap methods to dear ones until the numbers meet."""
    instance = search.instance
    started = search.best is not None
    search.accept("best_fit_decreasing", best_fit_decreasing(instance))
    for method in bounds.METHODS.values():
        if not search.bounds or not search.done:
            search.prove(method(instance))
    if not search.done:
        search.accept("first_fit_decreasing", first_fit_decreasing(instance))
    if not started and search.upper - search.lower <= _SMALL_GAP:
        _improve(search)
    if search.done:
        return
    types = ItemTypes.of(instance)
    search.statistics["types"] = types.num_types
    strategy = solve_full if types.num_types <= _FULL_TYPES else solve_by_knots
    try:
        load_kernels(search.deadline_s)
        strategy(search, types)
    except OutOfTimeError:  # what is known stays known
        pass
    except SolverError as error:
        if time.monotonic() < search.deadline_s:
            search.statistics["failure"] = str(error)


def _improve(search: Search) -> None:
    """Try dearer heuristics, for a part of the time."""
    assert search.best is not None
    cells_only = replace(search.instance, num_ranks=1, row_multiple=1)
    now_s = time.monotonic()
    until_s = now_s + _IMPROVE_SHARE * (search.deadline_s - now_s)
    better = improve(cells_only, search.best, lower=search.goal, deadline_s=until_s)
    search.accept("improve", better)


def _result(search: Search) -> ExactPacking:
    assert search.best is not None
    if search.upper <= search.lower:
        termination = "closed"
    elif search.upper <= search.goal:
        termination = "target"
    elif search.target is not None and search.lower > search.target:
        termination = "target refuted"
    else:
        termination = "failure" if "failure" in search.statistics else "time limit"
    return ExactPacking(
        solution=search.best,
        bounds=tuple(search.bounds),
        termination=termination,
        statistics=search.statistics,
    )
