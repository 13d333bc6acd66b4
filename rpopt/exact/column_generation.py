"""Column generation: the linear relaxation of packing, and an exact bound from it.

Each iteration solves the master problem, scales its dual values to whole numbers and
prices them with the exact knapsack. Whatever the values are, no cell is worth more than
the knapsack's optimum, which gives a bound in integers at every iteration (Farley
1990); the solver's floating point never enters it. Values are smoothed towards the best
ones known (Wentges 1997; Pessoa, Sadykov, Uchoa and Vanderbeck 2018) and several
columns come out of one pricing.

Axis letters: K item types, Q patterns.
"""

import math
import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rpopt.exact.knapsack import Knapsack
from rpopt.exact.master import LpPoint, Master
from rpopt.highs.linear import FloatArray
from rpopt.records import Int64Array
from rpopt.stop import OutOfTimeError

_LARGEST_VALUE = 2**30 - 1  # of a cell, so that the knapsack can work in 32 bits
_SMOOTHING = 0.5
_COLUMNS_PER_PRICING = 12
_ROUGH_CAPACITY = 8192
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DualBound:
    """Whole values of item types and the most that one cell can be worth.

    Parameters
    ----------
    value_K
        Value of an item of each type, int64, at least 0.
    best
        The largest value of a cell, from the exact knapsack.
    total
        Value of all the items that are to be packed.
    """

    value_K: Int64Array
    best: int
    total: int

    @property
    def ratio(self) -> Fraction:
        """The bound before it is rounded up."""
        return Fraction(self.total, max(1, self.best))

    @property
    def cells(self) -> int:
        """The number of cells that are needed at least."""
        return -(-self.total // max(1, self.best))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """Where column generation ended.

    Parameters
    ----------
    bound
        The best bound on the cells for the demand that was asked for.
    point
        The last solution of the master problem; None when time ran out before.
    converged
        Whether no pattern could improve the master problem.
    history
        The bounds that were the best ones when they were found, best last.
    """

    bound: DualBound
    point: LpPoint | None
    converged: bool
    history: tuple[DualBound, ...]


def whole_values(knapsack: Knapsack, value_K: FloatArray) -> Int64Array:
    """Scale values to whole numbers that the knapsack sums exactly, rounding down."""
    weight_K = knapsack.types.weight_K
    value_K = np.maximum(value_K, 0.0)
    largest = float((value_K / weight_K).max()) * knapsack.types.capacity
    if largest <= 0:
        return np.ones_like(weight_K)
    return np.floor(value_K * (_LARGEST_VALUE / largest)).astype(np.int64)


def bound_of(
    knapsack: Knapsack, value_K: Int64Array, demand_K: Int64Array
) -> DualBound:
    """Return the bound that whole values prove for a demand."""
    pricing = knapsack.price(value_K, demand_K=demand_K)
    return DualBound(value_K=value_K, best=pricing.best, total=int(demand_K @ value_K))


def generate(
    master: Master,
    knapsack: Knapsack,
    demand_K: Int64Array,
    *,
    num_fixed: int,
    stop_at: int,
    deadline_s: float,
    first: DualBound | None = None,
    converge: bool = False,
) -> Relaxation:
    """Generate patterns until the bound is decided.

    Parameters
    ----------
    master
        The master problem, restricted to this demand and to `num_fixed` fixed cells.
    knapsack
        The pricing problem.
    demand_K
        What is to be packed.
    num_fixed
        Cells in the objective of the master problem that are fixed already.
    stop_at
        Stop as soon as the bound reaches this number of cells.
    deadline_s
        When to stop, on the clock of `time.monotonic`.
    first
        Values to smooth towards at the beginning.
    converge
        Go on until no pattern improves the master problem; otherwise stop as soon as
        the bound cannot rise to another whole number.
    """
    values = knapsack.types.weight_K if first is None else first.value_K
    bound = bound_of(knapsack, values, demand_K)
    state = _Prices(bound=bound, centre=bound)
    point, history, converged = None, [bound], False
    while state.bound.cells < stop_at and time.monotonic() < deadline_s:
        new_point = master.solve(deadline_s - time.monotonic())
        if new_point is None:
            break
        point = new_point
        lp_cells = math.ceil(point.objective - num_fixed - _TOLERANCE)
        if not converge and state.bound.cells >= lp_cells:
            break
        try:
            improved = _price_out(master, knapsack, demand_K, point, state)
        except OutOfTimeError:
            break
        if state.bound is not history[-1]:
            history.append(state.bound)
        if not improved:
            converged = True
            break
        master.take_in()
    return Relaxation(
        bound=state.bound, point=point, converged=converged, history=tuple(history)
    )


@dataclass(slots=True, kw_only=True)
class _Prices:
    """The best bound, and the values to smooth towards."""

    bound: DualBound
    centre: DualBound


def _price_out(
    master: Master,
    knapsack: Knapsack,
    demand_K: Int64Array,
    point: LpPoint,
    prices: _Prices,
) -> bool:
    """Price until there is a pattern that improves the master problem.

    Smoothed values come first, then the master's own; weights that are rounded up come
    first, then the exact ones, from which alone bounds follow.
    """
    rough = max(1, knapsack.types.capacity // _ROUGH_CAPACITY)
    for unit in sorted({rough, 1}, reverse=True):
        for smoothing in (_SMOOTHING, 0.0):
            centre_K = prices.centre.value_K / max(1, prices.centre.best)
            mixed_K = smoothing * centre_K + (1 - smoothing) * point.value_K
            value_K = whole_values(knapsack, mixed_K)
            pricing = knapsack.price(
                value_K,
                demand_K=demand_K,
                max_patterns=_COLUMNS_PER_PRICING,
                unit=unit,
            )
            total = int(demand_K @ value_K)
            new = DualBound(value_K=value_K, best=pricing.best, total=total)
            if unit == 1:
                prices.bound = max(prices.bound, new, key=lambda b: b.ratio)
            prices.centre = max(prices.centre, new, key=lambda b: b.ratio)
            good_Q = pricing.pattern_QK @ point.value_K > 1 + _TOLERANCE
            if good_Q.any() and master.pool.add(pricing.pattern_QK[good_Q]):
                return True
    return False
