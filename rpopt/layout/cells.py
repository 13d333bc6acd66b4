"""Cells filled under the cap by simple rules: what training stacks do today.

Each rule returns the cell of each item, or None where it finds no cells that keep the
token cap and the samples per cell.

Axis letters: I items, X cells.
"""

import numpy as np

from rpopt.layout.instance import LayoutInstance
from rpopt.records import BoolArray, Int64Array


def greedy(
    instance: LayoutInstance, cost_I: Int64Array, *, max_samples: int | None = None
) -> Int64Array | None:
    """Put items, dearest first, into the cheapest cell with room.

    Parameters
    ----------
    cost_I
        What is balanced over the cells, >= 0.
    max_samples
        Samples per cell, where fewer than the instance allows are wanted.
    """
    cells = _Cells(instance, max_samples)
    cost_I = np.maximum(cost_I, 1)  # an empty cell is cheaper than any other
    total_X = np.zeros(instance.num_cells, dtype=np.int64)
    for item in _largest_first(cost_I):
        cell = cells.least(item, total_X)
        if cell is None:
            return None
        cells.put(item, cell)
        total_X[cell] += cost_I[item]
    return cells.cell_I


def first_fit_decreasing(instance: LayoutInstance) -> Int64Array | None:
    """Put items, heaviest first, into the first cell with room.

    Some cells may stay empty.
    """
    cells = _Cells(instance)
    order_X = np.arange(instance.num_cells)
    for item in _largest_first(instance.weight_I):
        cell = cells.least(item, order_X)
        if cell is None:
            return None
        cells.put(item, cell)
    return cells.cell_I


def next_fit(instance: LayoutInstance) -> Int64Array | None:
    """Fill cells in the order of the items, the next cell when one has no room.

    Some cells may stay empty.
    """
    cells, cell = _Cells(instance), 0
    for item in range(instance.num_items):
        cell += not cells.fits_X(item)[cell]
        if cell == instance.num_cells:
            return None
        cells.put(item, cell)
    return cells.cell_I


def repair(instance: LayoutInstance, cell_I: Int64Array) -> Int64Array | None:
    """Move items out of cells that break a limit.

    Items stay where they fit, heaviest first; the others, and those without a cell
    (-1), go to the emptiest cell with room.
    """
    cells, left = _Cells(instance), []
    for item in _largest_first(instance.weight_I):
        wanted = int(cell_I[item])
        if wanted >= 0 and cells.fits_X(item)[wanted]:
            cells.put(item, wanted)
        else:
            left.append(item)
    for item in left:
        cell = cells.least(item, cells.tokens_X)
        if cell is None:
            return None
        cells.put(item, cell)
    return cells.cell_I


def _largest_first(cost_I: Int64Array) -> list[int]:
    order: list[int] = np.argsort(-cost_I, kind="stable").tolist()
    return order


class _Cells:
    """R x D cells that are being filled, under the token cap and the sample limit."""

    def __init__(
        self, instance: LayoutInstance, max_samples: int | None = None
    ) -> None:
        self._weight_I, self._samples_I = instance.weight_I, instance.num_samples_I
        limits = (instance.max_samples_per_cell, max_samples)
        self._cap = instance.token_cap
        self._limit = min((m for m in limits if m is not None), default=None)
        self.tokens_X = np.zeros(instance.num_cells, dtype=np.int64)
        self._held_X = np.zeros(instance.num_cells, dtype=np.int64)
        self.cell_I = np.empty(instance.num_items, dtype=np.int64)

    def fits_X(self, item: int) -> BoolArray:
        """Return which cells have room for an item."""
        fits: BoolArray = self.tokens_X <= self._cap - self._weight_I[item]
        if self._limit is not None:
            fits &= self._held_X <= self._limit - self._samples_I[item]
        return fits

    def least(self, item: int, key_X: Int64Array) -> int | None:
        """Return the cell with the smallest key among those with room for an item."""
        fitting = np.flatnonzero(self.fits_X(item))
        return int(fitting[key_X[fitting].argmin()]) if fitting.size else None

    def put(self, item: int, cell: int) -> None:
        self.tokens_X[cell] += self._weight_I[item]
        self._held_X[cell] += self._samples_I[item]
        self.cell_I[item] = cell
