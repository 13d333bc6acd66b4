"""Packings found fast: the baselines of other stacks, and the best of ours.

Every heuristic keeps the capacity and the samples per cell. Axis letters: I items.
"""

import contextlib
import heapq
import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from functools import partial

import numpy as np

from rpopt.differencing import largest_differencing
from rpopt.packing import bounds
from rpopt.packing.instance import PackingInstance, PackingSolution, check
from rpopt.packing.subset import empty_last_cells, subset_sum_fill
from rpopt.records import Int64Array
from rpopt.stop import OutOfTimeError


def next_fit(instance: PackingInstance) -> PackingSolution:
    """Fill cells in the order of the items; a cell is closed when the next one fails.

    Megatron-Core and torchtitan pack this way.
    """
    limit = _sample_limit(instance)
    cell_I = []
    cell, load, count = 0, 0, 0
    items = zip(instance.weight_I.tolist(), instance.samples_I.tolist(), strict=True)
    for weight, size in items:
        if load + weight > instance.capacity or count + size > limit:
            cell, load, count = cell + 1, 0, 0
        load, count = load + weight, count + size
        cell_I.append(cell)
    return PackingSolution(cell_I=np.array(cell_I))


def first_fit_decreasing(instance: PackingInstance) -> PackingSolution:
    """Put items, heaviest first, into the first cell that has room (FFD).

    AReaL and NeMo-RL pack this way.
    """
    limit = _sample_limit(instance)
    weight, samples = instance.weight_I.tolist(), instance.samples_I.tolist()
    room = np.full(instance.num_items, instance.capacity)
    places = np.full(instance.num_items, limit)
    cell_I = np.empty(instance.num_items, dtype=np.int64)
    used = 0
    for item in _heaviest_first(instance.weight_I):
        fits = room[: used + 1] >= weight[item]
        if instance.max_samples_per_cell is not None:
            fits &= places[: used + 1] >= samples[item]
        cell = int(fits.argmax())
        used = max(used, cell + 1)
        room[cell] -= weight[item]
        places[cell] -= samples[item]
        cell_I[item] = cell
    return PackingSolution(cell_I=cell_I)


def best_fit_decreasing(instance: PackingInstance) -> PackingSolution:
    """Put items, heaviest first, into the fullest cell that has room (BFD)."""
    limit = _sample_limit(instance)
    weight, samples = instance.weight_I.tolist(), instance.samples_I.tolist()
    rooms: list[tuple[int, int]] = []
    places: list[int] = []
    cell_I = np.empty(instance.num_items, dtype=np.int64)
    for item in _heaviest_first(instance.weight_I):
        at = bisect_left(rooms, (weight[item], -1))
        while at < len(rooms) and places[rooms[at][1]] < samples[item]:
            at += 1
        if at < len(rooms):
            room, cell = rooms.pop(at)
        else:
            room, cell = instance.capacity, len(places)
            places.append(limit)
        places[cell] -= samples[item]
        if places[cell]:
            insort(rooms, (room - weight[item], cell))
        cell_I[item] = cell
    return PackingSolution(cell_I=cell_I)


def longest_processing_time(
    instance: PackingInstance,
    *,
    cost_I: Int64Array | None = None,
    min_cells: int = 1,
) -> PackingSolution:
    """Put items, dearest first, into the cheapest of k cells that has room (LPT).

    See `karmarkar_karp` for the parameters and for k. Equal cells are good where the
    samples per cell are scarce.
    """
    cost = instance.weight_I if cost_I is None else cost_I

    def partition(num_cells: int) -> Int64Array | None:
        return _cheapest_cells(instance, cost, num_cells)

    return _fewest_cells(instance, partition, min_cells)


def karmarkar_karp(
    instance: PackingInstance,
    *,
    cost_I: Int64Array | None = None,
    min_cells: int = 1,
) -> PackingSolution:
    """Balance k cells by largest differencing, for the smallest k that keeps the cap.

    Parameters
    ----------
    cost_I
        What to balance, int64 [I]; the tokens when left out. verl and slime balance a
        cost that is quadratic in the length.
    min_cells
        Smallest k; a lower bound on the number of cells where that is larger.

    Notes
    -----
    Karmarkar and Karp (1982), for k parts as in Michiels, Korst and Aarts (2003).
    """
    cost = instance.weight_I if cost_I is None else cost_I

    def partition(num_cells: int) -> Int64Array:
        return largest_differencing(cost, num_cells)

    return _fewest_cells(instance, partition, min_cells)


def pack(instance: PackingInstance, *, lower: int | None = None) -> PackingSolution:
    """Return a packing of few cells: the best that the heuristics here find.

    Cheap heuristics come first, and no more are tried once the number of rows meets
    the lower bound. Deterministic, and its work is bounded.

    Parameters
    ----------
    lower
        A lower bound on the number of cells; `bounds.l2` when left out.
    """
    lower = bounds.l2(instance).value if lower is None else lower
    return improve(instance, best_fit_decreasing(instance), lower=lower)


def improve(
    instance: PackingInstance,
    solution: PackingSolution,
    *,
    lower: int,
    deadline_s: float = math.inf,
) -> PackingSolution:
    """Return a packing of at most as many cells, found with dearer heuristics.

    From the deadline on (`time.monotonic`) no more is tried.
    """
    goal = instance.rows_for(lower) * instance.num_ranks
    methods: list[Callable[[PackingInstance], PackingSolution]]
    methods = [first_fit_decreasing, partial(subset_sum_fill, deadline_s=deadline_s)]
    if instance.max_samples_per_cell is not None:
        methods.insert(0, longest_processing_time)
    for method in methods:
        if solution.num_cells <= goal or time.monotonic() >= deadline_s:
            return solution
        with contextlib.suppress(OutOfTimeError):
            solution = min(solution, method(instance), key=lambda s: s.num_cells)
    return empty_last_cells(instance, solution, goal=goal, deadline_s=deadline_s)


def _sample_limit(instance: PackingInstance) -> int:
    """Return the samples a cell may hold; without a limit, as many as there are."""
    limit = instance.max_samples_per_cell
    total = int(instance.samples_I.sum())
    return total if limit is None else min(limit, total)


def _heaviest_first(weight_I: Int64Array) -> list[int]:
    order: list[int] = np.argsort(-weight_I, kind="stable").tolist()
    return order


def _cheapest_cells(
    instance: PackingInstance, cost_I: Int64Array, num_cells: int
) -> Int64Array | None:
    """Return the LPT cell of each item; None when an item finds no room."""
    weight, samples = instance.weight_I.tolist(), instance.samples_I.tolist()
    cost = cost_I.tolist()
    room = [instance.capacity] * num_cells
    places = [_sample_limit(instance)] * num_cells
    heap = [(0, 0, cell) for cell in range(num_cells)]
    cell_I = np.empty(instance.num_items, dtype=np.int64)
    for item in _heaviest_first(cost_I):
        passed = []
        while heap:
            load, held, cell = heapq.heappop(heap)
            if room[cell] >= weight[item] and places[cell] >= samples[item]:
                break
            passed.append((load, held, cell))
        else:
            return None
        room[cell] -= weight[item]
        places[cell] -= samples[item]
        cell_I[item] = cell
        passed.append((load + cost[item], held + 1, cell))
        for entry in passed:
            if room[entry[2]] and places[entry[2]]:
                heapq.heappush(heap, entry)
    return cell_I


def _fewest_cells(
    instance: PackingInstance,
    partition: Callable[[int], Int64Array | None],
    min_cells: int,
) -> PackingSolution:
    """Return a partition that fits, into few cells: gallop up, then halve back."""
    low = min(instance.num_items, max(min_cells, bounds.l2(instance).value))
    high = instance.num_items
    found = PackingSolution(cell_I=np.arange(instance.num_items))
    step = 1
    while low < high:
        num_cells = min(low + step - 1, (low + high) // 2)
        cell_I = partition(num_cells)
        solution = None if cell_I is None else PackingSolution(cell_I=cell_I)
        if solution is not None and not check(instance, solution):
            high, found = num_cells, solution
        else:
            low, step = num_cells + 1, 2 * step
    return found
