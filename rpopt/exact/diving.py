"""Diving: packings from the linear relaxation, by fixing patterns and pricing again.

Two dives share one state. `dive_by_value` is for hundreds of different weights: it uses
the values of a master problem with few knots and fixes cells that are worth nearly as
much as a cell can be. `dive_by_use` rounds a master problem with one row per item type.

Sources: Sadykov, Vanderbeck, Pessoa, Tahiri and Uchoa (2019), Primal heuristics for
branch and price; Belov and Scheithauer (2007) for sequential value correction.

Axis letters: K item types, Q patterns.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from rpopt.exact.column_generation import DualBound, Relaxation, generate, whole_values
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
        The fixed patterns, shape (K,) each.
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
        self.cells.extend([pattern_K] * copies)


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


def dive_by_value(
    master: Master,
    knapsack: Knapsack,
    dive: Dive,
    *,
    until_items: int,
    deadline_s: float,
    rng: np.random.Generator,
    share: float = 0.3,
    first: DualBound | None = None,
) -> bool:
    """Fix valuable cells until few items are left; False when the budget is lost."""
    while int(dive.residual_K.sum()) > until_items:
        relaxation = relax(master, knapsack, dive, deadline_s, first, converge=True)
        first = relaxation.bound
        if relaxation.point is None or first.cells > dive.left:
            return False
        lp_cells = relaxation.point.objective - len(dive.cells)
        loss = max(0.0, 1 - lp_cells / dive.left)
        if VERB:
            print(
                "   round",
                len(dive.cells),
                dive.left,
                dive.residual_K.sum(),
                "lp",
                lp_cells,
                "b",
                float(first.ratio),
                "loss",
                loss,
            )
        quota = max(1, math.ceil(share * dive.left))
        fixed = _fix_variants(
            master, knapsack, dive, relaxation.point, quota, loss, deadline_s
        )
        if not fixed:
            return False
    return True


VERB = 0


def _fix_variants(master, knapsack, dive, point, quota, loss, deadline_s):
    whole_K = whole_values(knapsack, point.value_K)
    best = knapsack.price(whole_K, demand_K=dive.residual_K, max_patterns=1)
    floor = math.floor(best.best * (1 - loss))
    use_Q = point.use_Q
    per_cell = int(dive.residual_K.sum()) / max(1, dive.left)
    unit = 1
    if per_cell > 5:
        unit = max(1, int(loss * knapsack.types.capacity / (2 * per_cell)))
    fixed = 0
    for q in np.argsort(-use_Q, kind="stable"):
        copies = math.floor(use_Q[q] + 0.5)
        if copies == 0 or fixed >= quota or time.monotonic() > deadline_s:
            break
        for _ in range(copies):
            offered_K = _near(dive.residual_K, master.pool[int(q)], 6)
            pricing = knapsack.price(whole_K, demand_K=offered_K, unit=unit)
            if pricing.best < floor:
                break
            dive.fix(pricing.pattern_QK[-1])
            fixed += 1
    if fixed == 0:
        dive.fix(best.pattern_QK[-1])
        fixed = 1
    return fixed


def _near(residual_K, pattern_K, reach):
    have = np.flatnonzero(residual_K)
    offered_K = np.zeros_like(residual_K)
    for k in np.flatnonzero(pattern_K):
        at = np.searchsorted(have, k)
        near = have[max(0, at - reach) : at + reach]
        offered_K[near] = residual_K[near]
    return offered_K


def dive_by_use(
    master: Master,
    knapsack: Knapsack,
    dive: Dive,
    *,
    deadline_s: float,
    rng: np.random.Generator,
    first: DualBound | None = None,
    failures: int = 20,
    children: int = 2,
    noise: float = 0.0,
) -> bool:
    """Round the relaxation down, then its largest fraction up, and solve again.

    Where the bound shows that the budget is lost, the last choice is taken back and the
    next largest fraction is tried, `children` times per node and `failures` in all.
    """
    stack = [_Node(residual_K=dive.residual_K, num_cells=len(dive.cells))]
    while stack and failures and time.monotonic() < deadline_s:
        node = stack[-1]
        dive.residual_K = node.residual_K
        del dive.cells[node.num_cells :]
        if node.use_Q is None:
            relaxation = relax(master, knapsack, dive, deadline_s, first)
            first = relaxation.bound
            if relaxation.point is None or first.cells > dive.left:
                failures -= 1
                stack.pop()
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
    for pattern_K in cells:
        dive.fix(pattern_K)
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
