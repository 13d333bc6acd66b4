"""Diving with few knots: for hundreds of different weights.

Every item is nearly unique, so a pattern of the master problem stands for many cells
of about its shape. For each use of a pattern the items left that are close to its own
are offered to the knapsack, and the best cell of them is fixed if it is worth nearly as
much as a cell can be. Little is lost until few items are left; those are packed
exactly.

This is a dive (see `diving`) and a kin of sequential value correction (Belov and
Scheithauer 2007), with values from the relaxation.

Axis letters: K item types, Q patterns.
"""

import math
import time
from dataclasses import dataclass

import numpy as np

from rpopt.exact.column_generation import DualBound, whole_values
from rpopt.exact.diving import Dive, relax
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.master import LpPoint, Master
from rpopt.records import Int64Array

_SHARE_PER_ROUND = 0.3
_MANY_ITEMS = 5  # in a cell: then the knapsack may round weights up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueDive:
    """How to dive by value.

    Parameters
    ----------
    master
        A master problem with few knots.
    knapsack
        The pricing problem.
    deadline_s
        When to stop, on the clock of `time.monotonic`.
    few_items, most_items
        Stop when at most `few_items` are left, or, where the budget is lost later, at
        the last state before that with at most `most_items`.
    reach
        Types to offer on each side of an item of a pattern.
    """

    master: Master
    knapsack: Knapsack
    deadline_s: float
    few_items: int
    most_items: int
    reach: int = 6

    def run(self, budget: int, first: DualBound) -> Dive | None:
        """Return a dive that fixed cells and did not lose the budget, or None."""
        dive = Dive(residual_K=self.knapsack.types.demand_K, budget=budget)
        last: Dive | None = None
        while True:
            relaxation = relax(
                self.master, self.knapsack, dive, self.deadline_s, first, converge=True
            )
            first, point = relaxation.bound, relaxation.point
            if point is None or first.cells > dive.left:
                return last
            num_items = int(dive.residual_K.sum())
            if num_items <= self.most_items:
                last = Dive(
                    residual_K=dive.residual_K, budget=budget, cells=[*dive.cells]
                )
            if num_items <= self.few_items:
                return last
            self._fix_some(dive, point)

    def _fix_some(self, dive: Dive, point: LpPoint) -> None:
        """Fix cells like the patterns used most; at least one cell."""
        whole_K = whole_values(self.knapsack, point.value_K)
        best = self.knapsack.price(whole_K, demand_K=dive.residual_K)
        loss = max(0.0, 1 - (point.objective - len(dive.cells)) / dive.left)
        floor = math.floor(best.best * (1 - loss))
        unit = self._unit(dive, loss)
        end = len(dive.cells) + max(1, math.ceil(_SHARE_PER_ROUND * dive.left))
        begin = len(dive.cells)
        for q in np.argsort(-point.use_Q, kind="stable"):
            copies = math.floor(point.use_Q[q] + 0.5)
            if copies == 0 or time.monotonic() > self.deadline_s:
                break
            for _ in range(min(copies, end - len(dive.cells))):
                offered_K = _near(dive.residual_K, self.master.pool[int(q)], self.reach)
                pricing = self.knapsack.price(whole_K, demand_K=offered_K, unit=unit)
                if pricing.best < floor:
                    break
                dive.fix(pricing.pattern_QK[-1])
        if len(dive.cells) == begin:
            dive.fix(best.pattern_QK[-1])

    def _unit(self, dive: Dive, loss: float) -> int:
        """Return how coarse weights may be: rounding costs half of what may be lost."""
        per_cell = int(dive.residual_K.sum()) / max(1, dive.left)
        if per_cell <= _MANY_ITEMS:
            return 1
        return max(1, int(loss * self.knapsack.types.capacity / (2 * per_cell)))


def _near(residual_K: Int64Array, pattern_K: Int64Array, reach: int) -> Int64Array:
    """Return the residual demand of the types next to those of a pattern."""
    left = np.flatnonzero(residual_K)
    offered_K = np.zeros_like(residual_K)
    for at in np.searchsorted(left, np.flatnonzero(pattern_K)):
        near = left[max(0, at - reach) : at + reach]
        offered_K[near] = residual_K[near]
    return offered_K
