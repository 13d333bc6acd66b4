"""Leader bounds on J: multipliers from linear programs with more and more classes.

Any multipliers prove a bound (`rpopt.layout.leader_bound`), so the search may end at
any time. With more classes, more of the longest items are a class of their own, and the
programs (`leader_master`) grow: the number doubles while that helps and time is left.

The programs are solved by the interior-point method, without crossover to a vertex:
their duals are dense, and a vertex is worth nothing here.
"""

import time
from collections.abc import Callable

from rpopt.certificate import Bound
from rpopt.errors import SolverError
from rpopt.exact.leader_master import Master
from rpopt.highs import LpHandle, Termination
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.leader_bound import NAME, Multipliers, value

_FIRST_CLASSES = 2
_MOST_NONZEROS = 3_000_000
"""Of a program's expert rows: one of that size takes minutes."""
_WORTHWHILE = 1e-5
"""Of J; a doubling that gains less is the last one."""


def leader_bound(
    instance: LayoutInstance,
    *,
    floor: int,
    time_limit_s: float,
    on_bound: Callable[[int], None] = lambda ticks: None,
) -> Bound | None:
    """Return the best leader bound found, in ticks; None where none exceeds the floor.

    Parameters
    ----------
    instance
        The layout instance.
    floor
        A bound that is known, in ticks.
    time_limit_s
        Seconds for everything; what is known by then is returned.
    on_bound
        Called with every better bound, in ticks.

    Raises
    ------
    SolverError
        When HiGHS fails before anything is found.
    """
    deadline_s = time.monotonic() + time_limit_s
    best, ticks = None, floor
    for attention_class in range(instance.attention_ticks_IC.shape[1]):
        num_classes, before = _FIRST_CLASSES, -1
        while num_classes <= instance.num_items:
            if num_classes * instance.load_ILP.size > _MOST_NONZEROS:
                break
            try:
                found = _solve(instance, attention_class, num_classes, deadline_s)
            except SolverError:
                if best is None:
                    raise
                found = None
            if found is None:
                break
            reached = value(instance, found)
            if reached > ticks:
                best, ticks = found, reached
                on_bound(ticks)
            if reached < before + _WORTHWHILE * instance.unit_ticks:
                break
            num_classes, before = 2 * num_classes, reached
    if best is None:
        return None
    return Bound(name=NAME, kind="arithmetic", value=ticks, evidence=best.evidence())


def _solve(
    instance: LayoutInstance, attention_class: int, num_classes: int, deadline_s: float
) -> Multipliers | None:
    """Return the multipliers of one program, None where it is not solved in time."""
    if time.monotonic() >= deadline_s:
        return None
    master = Master(instance, attention_class, num_classes)
    try:
        handle = LpHandle(master.model(), interior_point=True, deadline_s=deadline_s)
    except SolverError:
        if time.monotonic() < deadline_s:
            raise
        return None  # loading a large program takes seconds
    with handle:
        result = handle.solve(max(0.0, deadline_s - time.monotonic()))
    if result.status is not Termination.OPTIMAL or result.row_duals is None:
        return None
    return master.multipliers(result.row_duals)
