"""Baseline layouts: what training stacks do today, all under the cap.

Each baseline packs the items into R x dp cells; `arrange` then decides which cells
meet. A baseline that finds no packing of that many cells under the cap is left out.

Axis letters: I items.
"""

import heapq
from collections.abc import Callable

import numpy as np

from rpopt.layout.arrange import arrange, split_cells
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array

SPLIT = "fewest cells, split"
Packer = Callable[[LayoutInstance], Int64Array | None]


def baselines(instance: LayoutInstance, packed_I: Int64Array) -> dict[str, Layout]:
    """Return the baseline layouts by name.

    Parameters
    ----------
    instance
        The layout instance.
    packed_I
        Cell of each packed item in a feasible packing of at most R x dp cells, such as
        the witness of the row certificate. Dummies may be missing at its end; they get
        cells of their own. It makes sure that there is at least one baseline.
    """
    dummies = np.arange(instance.num_items - packed_I.size) + packed_I.max() + 1
    packed_I = np.concatenate([packed_I, dummies])
    cells = {name: pack(instance) for name, pack in PACKERS.items()}
    cells[SPLIT] = split_cells(instance, packed_I)
    return {
        name: arrange(instance, cell_I)
        for name, cell_I in cells.items()
        if cell_I is not None
    }


def token_lpt(instance: LayoutInstance) -> Int64Array | None:
    """Longest processing time first on tokens (AReaL's balanced greedy)."""
    return greedy(instance, instance.weight_I)


def attention_lpt(instance: LayoutInstance) -> Int64Array | None:
    """Longest processing time first on attention ticks."""
    return greedy(instance, instance.attention_ticks_IC.sum(axis=1))


def equal_count_lpt(instance: LayoutInstance) -> Int64Array | None:
    """Longest processing time first on tokens, equal sample counts (UniRL)."""
    most = -(-int(instance.num_samples_I.sum()) // instance.num_cells)
    return greedy(instance, instance.weight_I, max_samples=most)


def token_karmarkar_karp(instance: LayoutInstance) -> Int64Array | None:
    """Largest differencing on tokens (verl, slime), the cap repaired."""
    return repair(instance, largest_differencing(instance.weight_I, instance.num_cells))


def attention_karmarkar_karp(instance: LayoutInstance) -> Int64Array | None:
    """Largest differencing on attention ticks (slime by FLOPs), the cap repaired."""
    cost_I = instance.attention_ticks_IC.sum(axis=1)
    return repair(instance, largest_differencing(cost_I, instance.num_cells))


PACKERS: dict[str, Packer] = {
    "LPT, tokens": token_lpt,
    "LPT, attention": attention_lpt,
    "LPT, equal count": equal_count_lpt,
    "Karmarkar-Karp, tokens": token_karmarkar_karp,
    "Karmarkar-Karp, attention": attention_karmarkar_karp,
}


def greedy(
    instance: LayoutInstance, cost_I: Int64Array, *, max_samples: int | None = None
) -> Int64Array | None:
    """Put items, dearest first, into the cheapest cell with room; None if one has none.

    Parameters
    ----------
    cost_I
        What is balanced over the cells.
    max_samples
        Samples per cell, where fewer than the instance allows are wanted.
    """
    cells = _Cells(instance, max_samples)
    heap = [(0, cell) for cell in range(instance.num_cells)]
    cost = cost_I.tolist()
    for item in np.argsort(-cost_I, kind="stable").tolist():
        aside = []
        while heap and not cells.fits(item, heap[0][1]):
            aside.append(heapq.heappop(heap))
        if not heap:
            return None
        total, cell = heapq.heappop(heap)
        cells.put(item, cell)
        for entry in (*aside, (total + cost[item], cell)):
            heapq.heappush(heap, entry)
    return cells.result()


def largest_differencing(cost_I: Int64Array, num_parts: int) -> Int64Array:
    """Return the part of each item by the largest differencing method.

    N. Karmarkar and R. Karp, "The differencing method of set partitioning" (1982), for
    several parts: the two partial solutions with the largest spread are joined, large
    parts of one with small parts of the other.
    """
    empty: tuple[tuple[int, tuple[int, ...]], ...] = ((0, ()),) * (num_parts - 1)
    heap = [
        (-cost, item, ((cost, (item,)), *empty))
        for item, cost in enumerate(cost_I.tolist())
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, tie, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        joined = sorted(
            (
                (a + b, items_a + items_b)
                for (a, items_a), (b, items_b) in zip(first, second[::-1], strict=True)
            ),
            reverse=True,
        )
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], tie, tuple(joined)))
    part_I = np.empty(cost_I.size, dtype=np.int64)
    for part, (_, items) in enumerate(heap[0][2]):
        part_I[list(items)] = part
    return part_I


def repair(instance: LayoutInstance, part_I: Int64Array) -> Int64Array | None:
    """Move items out of parts that break a limit, and into empty ones; None if stuck.

    Items stay where they fit, heaviest first; the others go to the emptiest cell with
    room.
    """
    cells = _Cells(instance, None)
    left = []
    for item in np.argsort(-instance.weight_I, kind="stable").tolist():
        if cells.fits(item, int(part_I[item])):
            cells.put(item, int(part_I[item]))
        else:
            left.append(item)
    for item in left:
        cell = min(range(instance.num_cells), key=lambda c: (cells.tokens[c], c))
        if not cells.fits(item, cell):
            return None
        cells.put(item, cell)
    return cells.result()


class _Cells:
    """Cells that are being filled, under the token cap and the sample limit."""

    def __init__(self, instance: LayoutInstance, max_samples: int | None) -> None:
        limit = instance.max_samples_per_cell or int(instance.num_samples_I.sum())
        self._limit = limit if max_samples is None else min(limit, max_samples)
        self._cap = instance.token_cap
        self._weight = instance.weight_I.tolist()
        self._count = instance.num_samples_I.tolist()
        self.tokens = [0] * instance.num_cells
        self._samples = [0] * instance.num_cells
        self._cell_I = np.empty(instance.num_items, dtype=np.int64)

    def fits(self, item: int, cell: int) -> bool:
        return (
            self.tokens[cell] + self._weight[item] <= self._cap
            and self._samples[cell] + self._count[item] <= self._limit
        )

    def put(self, item: int, cell: int) -> None:
        self.tokens[cell] += self._weight[item]
        self._samples[cell] += self._count[item]
        self._cell_I[item] = cell

    def result(self) -> Int64Array | None:
        return self._cell_I if all(self.tokens) else None
