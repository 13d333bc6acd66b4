"""Column generation: the linear relaxation of packing, and an exact bound from it.

Each iteration solves the master problem, scales its dual values to whole numbers and
prices them with the exact knapsack. Whatever the values are, no cell is worth more than
the knapsack's optimum, which gives a bound in integers at every iteration (Farley 1990);
the solver's floating point never enters it. Values are smoothed towards the best ones
known (Wentges 1997; Pessoa, Sadykov, Uchoa and Vanderbeck 2018) and several columns
come out of one pricing.

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

_LARGEST_VALUE = 2**30 - 1  # of a cell, so that the knapsack can work in 32 bits
_SMOOTHING = 0.5
_COLUMNS_PER_PRICING = 12
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
    bound = first or bound_of(knapsack, knapsack.types.weight_K, demand_K)
    if first is not None:
        bound = bound_of(knapsack, first.value_K, demand_K)
    point, history, converged = None, [bound], False
    while bound.cells < stop_at and time.monotonic() < deadline_s:
        new_point = master.solve(deadline_s - time.monotonic())
        if new_point is None:
            break
        point = new_point
        if not converge and bound.cells >= math.ceil(
            point.objective - num_fixed - _TOLERANCE
        ):
            break
        bound, improved = _price_out(master, knapsack, demand_K, point, bound)
        if bound is not history[-1]:
            history.append(bound)
        if not improved:
            converged = True
            break
        master.take_in()
    return Relaxation(
        bound=bound, point=point, converged=converged, history=tuple(history)
    )


def _price_out(
    master: Master,
    knapsack: Knapsack,
    demand_K: Int64Array,
    point: LpPoint,
    bound: DualBound,
) -> tuple[DualBound, bool]:
    """Price smoothed values, and the master's own when those give no new pattern."""
    centre_K = bound.value_K / max(1, bound.best)
    for smoothing in (_SMOOTHING, 0.0):
        mixed_K = smoothing * centre_K + (1 - smoothing) * point.value_K
        value_K = whole_values(knapsack, mixed_K)
        pricing = knapsack.price(
            value_K, demand_K=demand_K, max_patterns=_COLUMNS_PER_PRICING
        )
        total = int(demand_K @ value_K)
        new = DualBound(value_K=value_K, best=pricing.best, total=total)
        bound = max(bound, new, key=lambda b: b.ratio)
        worth_Q = pricing.pattern_QK @ point.value_K
        good_Q = worth_Q > 1 + _TOLERANCE
        if good_Q.any() and master.pool.add(pricing.pattern_QK[good_Q]).size:
            return bound, True
    return bound, False
