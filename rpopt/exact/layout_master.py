"""The linear program over levels, whose duals are good multipliers for a level bound.

A *fill* is a set of items in cells of one level, using some cells: one item alone uses
its share of the token cap (a compact fill), a pattern of items that fit uses one cell.
With x_f of each fill, y_k groups at level k, the sum c_k of their peaks, and the sum
e_kl of their expert peaks in layer l:

    minimise  sum of c_k + sum of e_kl + mean over cells of the other classes
    (1) sum of x_f over fills with item i = 1               every item    [price]
    (2) sum of attention_f x_f <= h c_k over level k        attention     [alpha]
    (3) sum of cells_f x_f <= h y_k over level k            cells         [room]
    (4) c_k >= lowest_k y_k
    (5) c_k <= highest_k y_k                                the level
    (6) sum of y_j over levels j >= k >= forced_k           forced groups
    (7) e_kl >= sum of load_flq x_f over level k            EP rank q     [theta]

Rows (7) are added where they are violated. The unit of the objective is the mean
attention of a cell.

Axis letters: I items, K levels, L MoE layers, P EP ranks, F fills, M rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from rpopt.highs import LinearModel
from rpopt.highs.linear import FloatArray
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.level_bound import forced_groups
from rpopt.records import Int64Array

Peak = tuple[int, int, int]
"""A row (7): level, layer, EP rank."""
Cut = tuple[int, FloatArray, float]
"""A level, what each item is worth there, and the most that a cell holds."""
_MOST_LEVELS = 4
_MOST_COMPACT_FILLS = 4096
_LOWEST_PEAK = 0.9  # of the mean: groups get there without being forced
_PENALTY = 100.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fills:
    """Item sets and what they use.

    Parameters
    ----------
    level_F
        Level of each fill.
    items
        Items of each fill.
    cells_F
        Cells used.
    """

    level_F: Int64Array
    items: Sequence[Sequence[int]]
    cells_F: FloatArray

    @classmethod
    def patterns(cls, level: int, items: Sequence[Sequence[int]]) -> "Fills":
        """Return fills of one cell each."""
        num = len(items)
        return cls(level_F=np.full(num, level), items=items, cells_F=np.ones(num))

    @classmethod
    def left_out(cls, num_items: int) -> "Fills":
        """Return fills at no level, which make any program feasible at a penalty."""
        items = [(i,) for i in range(num_items)]
        level_F = np.full(num_items, -1)
        return cls(level_F=level_F, items=items, cells_F=np.zeros(num_items))

    def joined(self, other: "Fills") -> "Fills":
        """Return these fills and then those."""
        return Fills(
            level_F=np.concatenate((self.level_F, other.level_F)),
            items=[*self.items, *other.items],
            cells_F=np.concatenate((self.cells_F, other.cells_F)),
        )


class Master:
    """The program of one instance and attention class.

    Parameters
    ----------
    instance
        The layout instance.
    attention_class
        The class whose peaks define the levels.

    Attributes
    ----------
    above_K
        Ticks that peaks of a level exceed: below 0, then wherever the longest items
        force one more group up.
    peaks
        Rows (7) that are present.
    unit
        Ticks of one unit.
    """

    def __init__(self, instance: LayoutInstance, attention_class: int) -> None:
        self.instance, self.attention_class = instance, attention_class
        self.lead_I = instance.attention_ticks_IC[:, attention_class]
        self.unit = max(1.0, float(self.lead_I.sum()) / instance.num_cells)
        self.above_K = self._levels()
        self.highest_K = [*self.above_K[1:], int(self.lead_I.sum())]
        self.peaks: list[Peak] = []
        weight_L = instance.layer_weight_ticks_L / self.unit
        self.load_ILP = instance.load_ILP * weight_L[:, None]
        self.other_I = (
            instance.attention_ticks_IC.sum(axis=1) - self.lead_I
        ) / self.unit

    def _levels(self) -> list[int]:
        """Return where levels begin."""
        most = max(_MOST_LEVELS, _MOST_COMPACT_FILLS // self.instance.num_items)
        above: list[int] = []
        forced = 0
        for peak in np.unique(self.lead_I)[::-1].tolist():
            if peak <= _LOWEST_PEAK * self.unit or len(above) == most:
                break
            groups = forced_groups(self.instance, self.attention_class, peak - 1)
            if groups > forced:
                forced = groups
                above.append(peak - 1)
        return [-1, *above[::-1]]

    @property
    def num_levels(self) -> int:
        """K."""
        return len(self.above_K)

    def allowed(self, level: int) -> Int64Array:
        """Return the items that may lie in a level."""
        return np.flatnonzero(self.lead_I <= self.highest_K[level])

    def compact(self, levels: Iterable[int]) -> Fills:
        """Return one fill per item that may lie in each of the levels."""
        parts = [(k, i) for k in levels for i in self.allowed(k).tolist()]
        level_F, item_F = np.array(parts, dtype=np.int64).reshape(-1, 2).T
        return Fills(
            level_F=level_F,
            items=[(i,) for i in item_F.tolist()],
            cells_F=self.instance.weight_I[item_F] / self.instance.token_cap,
        )

    def volume_peaks(self) -> list[tuple[int, int]]:
        """Return the busiest EP rank of each layer that costs something."""
        total_LP = self.load_ILP.sum(axis=0)
        layers = np.flatnonzero(total_LP.sum(axis=1)).tolist()
        return [(layer, int(total_LP[layer].argmax())) for layer in layers]

    # ------------------------------------------------------------------- the program

    def row(self, name: str) -> int:
        """Return the first row of a family; all but (1) and (7) have K rows."""
        families = ("attention", "cells", "lowest", "highest", "forced", "peaks")
        return self.instance.num_items + families.index(name) * self.num_levels

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Level and layer of each column e."""
        return sorted({(k, layer) for k, layer, _ in self.peaks})

    @property
    def num_fixed(self) -> int:
        """Number of columns before the fills: y, c and e."""
        return 2 * self.num_levels + len(self.layers)

    def columns(self, fills: Fills) -> Any:
        """Return the columns of fills, sparse [M, F]."""
        sizes = [len(items) for items in fills.items]
        pointer = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        index = np.array([i for items in fills.items for i in items], dtype=np.int64)
        shape = (self.instance.num_items, len(sizes))
        cover = sp.csc_matrix((np.ones(index.size), index, pointer), shape=shape)
        at_level = sp.csr_matrix(
            fills.level_F == np.arange(self.num_levels)[:, None], dtype=float
        )
        attention = at_level.multiply(cover.T @ (self.lead_I / self.unit))
        cells = at_level.multiply(fills.cells_F)
        nothing = sp.csr_matrix((3 * self.num_levels, len(sizes)))
        blocks: list[Any] = [cover, attention, cells, nothing]
        if self.peaks:
            level_M, layer_M, rank_M = np.array(self.peaks).T
            load = self.load_ILP[:, layer_M, rank_M].T @ cover
            blocks.append(sp.csr_matrix(-load * (level_M[:, None] == fills.level_F)))
        return sp.vstack(blocks, format="csc")

    def costs(self, fills: Fills) -> FloatArray:
        """Return the cost of each fill: the other classes' mean, or the penalty."""
        cost_I = self.other_I / self.instance.shard_size
        cost_F = np.array([cost_I[list(items)].sum() for items in fills.items])
        costs: FloatArray = np.where(fills.level_F < 0, _PENALTY, cost_F)
        return costs

    def _fixed_columns(self) -> Any:
        """Return the columns y, c and e, sparse [M, 2 K + num_layers]."""
        size, h = self.num_levels, self.instance.shard_size
        begin = self.instance.num_items
        dense = np.zeros((5 * size + len(self.peaks), self.num_fixed))
        at = {name: self.row(name) - begin for name in ("attention", "cells", "lowest")}
        at |= {name: self.row(name) - begin for name in ("highest", "forced", "peaks")}
        for k in range(size):
            y, c = k, size + k
            dense[at["attention"] + k, c] = dense[at["cells"] + k, y] = -h
            dense[at["lowest"] + k, c] = dense[at["highest"] + k, c] = 1
            dense[at["lowest"] + k, y] = -(self.above_K[k] + 1) / self.unit
            dense[at["highest"] + k, y] = -self.highest_K[k] / self.unit
            dense[at["forced"] : at["forced"] + k + 1, y] = 1
        for j, (k, layer, _) in enumerate(self.peaks):
            column = 2 * size + self.layers.index((k, layer))
            dense[at["peaks"] + j, column] = 1
        parts: list[Any] = [
            sp.csc_matrix((begin, self.num_fixed)),
            sp.csc_matrix(dense),
        ]
        return sp.vstack(parts, format="csc")

    def model(
        self, fills: Fills, *, whole: bool = False, cuts: Sequence[Cut] = ()
    ) -> LinearModel:
        """Return the program over some fills.

        Parameters
        ----------
        fills
            The columns x.
        whole
            Whether all y, and x above the lowest level, are whole numbers.
        cuts
            Further rows: what the items of a level are worth, and the most that a cell
            may hold.
        """
        blocks: list[Any] = [self._fixed_columns(), self.columns(fills)]
        matrix = sp.hstack(blocks, format="csr")
        extra: list[Any] = [self._cut_row(fills, cut) for cut in cuts]
        coo = sp.vstack([matrix, *extra]).tocoo() if extra else matrix.tocoo()
        lower, upper = self._row_bounds(matrix.shape[0])
        num_x, size = len(fills.items), self.num_levels
        integral = np.zeros(coo.shape[1], dtype=bool)
        if whole:
            integral[:size] = True
            integral[self.num_fixed :] = fills.level_F > 0
        peaks = self.num_fixed - size
        highest = 1.0 if whole else np.inf
        return LinearModel.from_triplets(
            rows=coo.row,
            cols=coo.col,
            values=coo.data,
            col_cost=np.concatenate(
                (np.zeros(size), np.ones(peaks), self.costs(fills))
            ),
            col_lower=np.zeros(coo.shape[1]),
            col_upper=np.append(
                np.full(self.num_fixed, np.inf), np.full(num_x, highest)
            ),
            integrality=integral,
            row_lower=np.append(lower, np.full(len(extra), -np.inf)),
            row_upper=np.append(upper, np.zeros(len(extra))),
        )

    def _row_bounds(self, num_rows: int) -> tuple[FloatArray, FloatArray]:
        lower, upper = np.zeros(num_rows), np.full(num_rows, np.inf)
        lower[: self.instance.num_items] = upper[: self.instance.num_items] = 1
        for name in ("attention", "cells", "highest"):
            rows = slice(self.row(name), self.row(name) + self.num_levels)
            lower[rows], upper[rows] = -np.inf, 0
        forced = slice(self.row("forced"), self.row("forced") + self.num_levels)
        lower[forced] = [
            forced_groups(self.instance, self.attention_class, t) for t in self.above_K
        ]
        upper[forced] = self.instance.num_groups
        return lower, upper

    def _cut_row(self, fills: Fills, cut: Cut) -> Any:
        """Return the row: worth of the items of a level <= most per cell x cells."""
        level, worth_I, most = cut
        row = np.zeros((1, self.num_fixed + len(fills.items)))
        row[0, level] = -self.instance.shard_size * most
        worth_F = [worth_I[list(items)].sum() for items in fills.items]
        row[0, self.num_fixed :] = np.where(fills.level_F == level, worth_F, 0)
        return sp.csr_matrix(row)
