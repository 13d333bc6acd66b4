"""Packings as lists of items per cell: the form that heuristics work on."""

import heapq
from collections.abc import Sequence

import numpy as np

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.packing.instance import PackingInstance, PackingSolution

Cells = list[list[int]]


def to_cells(solution: PackingSolution) -> Cells:
    """Return the items of each cell, in increasing order."""
    cells: Cells = [[] for _ in range(solution.num_cells)]
    for item, cell in enumerate(solution.cell_I.tolist()):
        cells[cell].append(item)
    return cells


def from_cells(cells: Sequence[Sequence[int]], num_items: int) -> PackingSolution:
    """Return the packing with these cells; empty ones are left out."""
    cell_I = np.empty(num_items, dtype=np.int64)
    for number, cell in enumerate(filter(None, cells)):
        cell_I[cell] = number
    return PackingSolution(cell_I=cell_I)


def split_to(
    instance: PackingInstance, solution: PackingSolution, num_cells: int
) -> PackingSolution:
    """Split cells until there are exactly `num_cells`, none of them empty.

    The heaviest cell of several items is split first, into halves as equal as dealing
    its items by decreasing weight makes them.

    Raises
    ------
    InstanceError
        When the packing has more cells already.
    InfeasibleError
        When there are fewer items than cells.
    """
    if solution.num_cells > num_cells:
        raise InstanceError(
            f"the packing has {solution.num_cells} cells and cannot be split into"
            f" {num_cells}; ask for at least {solution.num_cells}"
        )
    if instance.num_items < num_cells:
        raise InfeasibleError(
            f"{instance.num_items} items cannot fill {num_cells} cells without an"
            f" empty one; add {num_cells - instance.num_items} zero-weight dummies, or"
            " lower dp or row_multiple"
        )
    weight = instance.weight_I.tolist()
    cells = to_cells(solution)
    heap = [(-sum(weight[i] for i in c), k) for k, c in enumerate(cells) if len(c) > 1]
    heapq.heapify(heap)
    while len(cells) < num_cells:
        _, heaviest = heapq.heappop(heap)
        cells.append([])
        for k, half in zip(
            (heaviest, len(cells) - 1), _halves(cells[heaviest], weight), strict=True
        ):
            cells[k] = half
            if len(half) > 1:
                heapq.heappush(heap, (-sum(weight[i] for i in half), k))
    return from_cells(cells, instance.num_items)


def _halves(cell: list[int], weight: list[int]) -> Cells:
    halves: Cells = [[], []]
    load = [0, 0]
    for item in sorted(cell, key=lambda i: -weight[i]):
        lighter = int(load[1] < load[0])
        halves[lighter].append(item)
        load[lighter] += weight[item]
    return halves
