"""What one rank does with a plan: its cells, the way back, and exact loss weights.

Samples are numbered over the whole window: all of rank 0 in its order, then rank 1's.

Axis letters: N samples, R rows, D DP ranks, O kept samples in the order of execution.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpopt.plans import Placement, Plan
from rpopt.records import BoolArray, Int64Array
from rpopt.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds that collective planning took on this rank.

    `gather_s` waits for the other ranks and moves histograms, `search_s` is the search
    itself, `agree_s` is status and digest check.
    """

    gather_s: float
    search_s: float
    agree_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.gather_s + self.search_s + self.agree_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The plan of a window as one DP rank needs it.

    Parameters
    ----------
    window
        All samples; without routes when the baseline is in force.
    cells
        Sample ids of each row on this rank. An empty cell is filled with a zero-weight
        dummy (only where the rules allow dummies): run any one token with weight 0.
    rank_of_sample_N, row_of_sample_N
        Where each sample of the window goes; -1 where it is dropped.
    first_of_rank_D
        Id of the first sample that each rank brought; sample i of rank d was the local
        sample i - first_of_rank_D[d].
    token_weight_R
        Loss tokens of each own cell ÷ loss tokens of the window. Multiply each cell's
        *mean over loss tokens* by it, sum over cells and *sum* gradients over ranks
        (times dp where the all-reduce averages): the exact mean over the window.
    sample_weight_R
        The same for losses that are means over samples.
    placement
        The placement that this plan wants; without routes, the previous one.
    plan
        The planner's answer; None when the baseline packing is in force.
    reason
        Why the baseline is in force; None when it is not.
    times
        Where the time went.
    """

    window: Window
    cells: tuple[tuple[int, ...], ...]
    rank_of_sample_N: Int64Array
    row_of_sample_N: Int64Array
    first_of_rank_D: Int64Array
    token_weight_R: npt.NDArray[np.float64]
    sample_weight_R: npt.NDArray[np.float64]
    placement: Placement | None
    plan: Plan | None
    reason: str | None
    times: Times

    @property
    def is_baseline(self) -> bool:
        """Whether planning failed somewhere, so that the baseline is in force."""
        return self.plan is None

    @property
    def order_O(self) -> Int64Array:
        """Ids of the kept samples as executed: by rank, by row, then by id."""
        order_N = np.lexsort((self.row_of_sample_N, self.rank_of_sample_N))
        return order_N[self.rank_of_sample_N[order_N] >= 0]

    @property
    def inverse_N(self) -> Int64Array:
        """Place of each sample in `order_O`; -1 where it is dropped.

        Results gathered in the order of execution are brought back by
        `results_O[inverse_N]`.
        """
        inverse_N = np.full(self.rank_of_sample_N.size, -1)
        inverse_N[self.order_O] = np.arange(self.order_O.size)
        return inverse_N


def cells_of(
    rank: int, num_rows: int, rank_N: Int64Array, row_N: Int64Array
) -> tuple[tuple[int, ...], ...]:
    """Return the sample ids of each row on one rank, in increasing order."""
    return tuple(
        tuple(np.flatnonzero((rank_N == rank) & (row_N == row)).tolist())
        for row in range(num_rows)
    )


def shares(
    cells: tuple[tuple[int, ...], ...], weight_N: Int64Array, kept_N: BoolArray
) -> npt.NDArray[np.float64]:
    """Return the weight of each cell as a share of all kept samples', float64 [R]."""
    total = int(weight_N[kept_N].sum())
    own_R = [int(weight_N[list(cell)].sum()) for cell in cells]
    return np.array(own_R, dtype=np.float64) / max(total, 1)
