"""Packing by brute force, for tiny instances."""

from collections.abc import Sequence
from itertools import product

from rpopt.packing.instance import PackingInstance


def min_cells(instance: PackingInstance) -> int:
    """The smallest number of cells: every item in every cell that has room."""
    samples = instance.samples_I.tolist()
    limit = instance.max_samples_per_cell or sum(samples)
    items = sorted(zip(instance.weight_I.tolist(), samples, strict=True), reverse=True)
    best = len(items)

    def put(k: int, cells: list[tuple[int, int]]) -> None:
        nonlocal best
        if len(cells) >= best:
            return
        if k == len(items):
            best = len(cells)
            return
        weight, size = items[k]
        for load, count in set(cells):
            if load + weight <= instance.capacity and count + size <= limit:
                rest = cells.copy()
                rest.remove((load, count))
                put(k + 1, [*rest, (load + weight, count + size)])
        put(k + 1, [*cells, items[k]])

    put(0, [])
    return best


def max_cell_value(instance: PackingInstance, values: Sequence[int]) -> int:
    """The largest value of the items of one cell: every subset is tried."""
    weights, samples = instance.weight_I.tolist(), instance.samples_I.tolist()
    limit = instance.max_samples_per_cell or sum(samples)
    best = 0
    for chosen in product((0, 1), repeat=len(weights)):
        if dot(chosen, weights) <= instance.capacity and dot(chosen, samples) <= limit:
            best = max(best, dot(chosen, values))
    return best


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))
