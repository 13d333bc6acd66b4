"""Diving: packings from the linear relaxation, by fixing patterns and pricing again.

A master problem with one row per item type is solved, whole uses of patterns are fixed,
or else the largest fraction, and what is left is solved again with new patterns.

Source: Sadykov, Vanderbeck, Pessoa, Tahiri and Uchoa (2019), Primal heuristics for
branch and price: the joys of diving.

Axis letters: K item types, Q patterns.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from rpopt.exact.column_generation import DualBound, Relaxation, generate
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.master import Master
from rpopt.records import Int64Array

_TOLERANCE = 1e-6


@dataclass(slots=True, kw_only=True)
class Dive:
    """Cells that are fixed, and what is left to pack.

    Parameters
    ----------
    residual_K
        Items of each type that are left.
    budget
        Cells that may be used in all.
    cells
        The types of the items in each fixed cell, with repetition.
    """

    residual_K: Int64Array
    budget: int
    cells: list[Int64Array] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Cells that may still be used."""
        return self.budget - len(self.cells)

    def fix(self, pattern_K: Int64Array, copies: int = 1) -> None:
        """Use a pattern."""
        self.residual_K = self.residual_K - copies * pattern_K
        assert (self.residual_K >= 0).all()
        cell = np.repeat(np.arange(pattern_K.size), pattern_K)
        self.cells.extend([cell] * copies)


def relax(
    master: Master,
    knapsack: Knapsack,
    dive: Dive,
    deadline_s: float,
    first: DualBound | None,
    converge: bool = False,
) -> Relaxation:
    """Solve the relaxation of what is left; stop once the budget is out of reach."""
    master.restrict(dive.residual_K, len(dive.cells))
    return generate(
        master,
        knapsack,
        dive.residual_K,
        num_fixed=len(dive.cells),
        stop_at=dive.left + 1,
        deadline_s=deadline_s,
        first=first,
        converge=converge,
    )


def dive_by_use(
    master: Master,
    knapsack: Knapsack,
    dive: Dive,
    *,
    deadline_s: float,
    rng: np.random.Generator,
    first: DualBound | None = None,
    most_failures: int = 12,
    children: int = 2,
    noise: float = 0.0,
) -> bool:
    """Round the relaxation down, then its largest fraction up, and solve again.

    Where the bound shows that the budget is lost, choices are taken back, one more at
    each failure, and the next largest fraction is tried, `children` times per node.
    """
    failures = 0
    stack = [_Node(residual_K=dive.residual_K, num_cells=len(dive.cells))]
    while stack and failures < most_failures and time.monotonic() < deadline_s:
        node = stack[-1]
        dive.residual_K = node.residual_K
        del dive.cells[node.num_cells :]
        if node.use_Q is None:
            relaxation = relax(master, knapsack, dive, deadline_s, first)
            first = relaxation.bound
            if relaxation.point is None or first.cells > dive.left:
                failures += 1
                del stack[-failures:]
                continue
            use_Q = relaxation.point.use_Q
            node.use_Q = use_Q + noise * rng.random(use_Q.size) * (use_Q > _TOLERANCE)
        if node.tries >= children or not _fix_used(master, dive, node, rng):
            stack.pop()
            continue
        if finish_greedily(master.types, dive):
            return True
        stack.append(_Node(residual_K=dive.residual_K, num_cells=len(dive.cells)))
    return False


def finish_greedily(types: ItemTypes, dive: Dive, most: int = 400) -> bool:
    """Pack what is left by first fit decreasing if the budget allows it."""
    num = int(dive.residual_K.sum())
    if num == 0:
        return True
    if num > most or int(dive.residual_K @ types.weight_K) > dive.left * types.capacity:
        return False
    cells = types.first_fit(dive.residual_K, dive.left)
    if cells is None:
        return False
    dive.cells.extend(cells)
    dive.residual_K = np.zeros_like(dive.residual_K)
    return True


@dataclass(slots=True, kw_only=True)
class _Node:
    residual_K: Int64Array
    num_cells: int
    use_Q: np.ndarray | None = None
    tries: int = 0


def _fix_used(
    master: Master, dive: Dive, node: _Node, rng: np.random.Generator
) -> bool:
    """Fix whole uses; where there are none, the next fraction in the node's order.

    At a second try only some of the whole uses are fixed.
    """
    use_Q = node.use_Q
    assert use_Q is not None
    before = len(dive.cells)
    order = np.argsort(-use_Q, kind="stable")
    order = order[use_Q[order] > _TOLERANCE]
    whole = order[use_Q[order] >= 0.95]
    if node.tries and whole.size:
        whole = whole[rng.random(whole.size) < 0.5**node.tries]
    for q in whole:
        copies = math.floor(use_Q[q] + 0.05)
        pattern_K = master.pool[int(q)]
        some = pattern_K > 0
        copies = min(copies, int((dive.residual_K[some] // pattern_K[some]).min()))
        dive.fix(pattern_K, copies)
    if len(dive.cells) == before:
        if node.tries >= order.size:
            return False
        pattern_K = np.minimum(master.pool[int(order[node.tries])], dive.residual_K)
        dive.fix(pattern_K)
    node.tries += 1
    return True
