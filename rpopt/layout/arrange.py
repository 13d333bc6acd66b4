"""From cells to a layout: which cells meet in a group, and which groups in a shard.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, D DP ranks,
R rows, S shards, H ranks of a shard, G groups, X cells.
"""

import heapq

import numpy as np

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.layout.evaluate import group_totals, peaks
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array


def from_packing(instance: LayoutInstance, packed_I: Int64Array) -> Layout:
    """Turn a feasible packing of at most R x dp cells into a layout.

    Parameters
    ----------
    packed_I
        Cell of each packed item. Dummies may be missing at its end; they get cells of
        their own.

    Raises
    ------
    InstanceError
        When the packing has more items than the layout.
    InfeasibleError
        When the packing has more cells than the layout.
    """
    packed_I = np.asarray(packed_I)
    missing = instance.num_items - packed_I.size
    if missing < 0:
        raise InstanceError(
            f"the packing has {packed_I.size} items, the layout only"
            f" {instance.num_items}; give a packing of the same items"
        )
    lone_I = np.arange(missing) + packed_I.max(initial=-1) + 1
    cell_I = np.concatenate([packed_I, lone_I])
    return arrange(instance, split_cells(instance, cell_I))


def arrange(instance: LayoutInstance, cell_I: Int64Array) -> Layout:
    """Turn R x dp nonempty cells into a layout.

    The ranks of a group wait for the largest of them, so cells of similar attention
    form a group. Groups then go to the shards largest first, each to the shard with
    the smallest sum that still has a free row; where shards wait for each other in
    every row, groups of similar cost form a row instead.

    Parameters
    ----------
    cell_I
        Cell of each item, 0 to R x dp - 1.
    """
    attention_X = np.zeros(instance.num_cells, dtype=np.int64)
    np.add.at(attention_X, cell_I, instance.attention_ticks_IC.sum(axis=1))
    place_X = np.empty(instance.num_cells, dtype=np.int64)
    place_X[np.argsort(-attention_X, kind="stable")] = np.arange(instance.num_cells)
    group_X, member_X = np.divmod(place_X, instance.shard_size)
    group_I, member_I = group_X[cell_I], member_X[cell_I]
    attention_GC, load_GLP = group_totals(instance, group_I, member_I)
    expert_GL = peaks(load_GLP) * instance.layer_weight_ticks_L
    ticks_G = attention_GC.sum(axis=1) + expert_GL.sum(axis=1)
    if instance.coupling == "row":
        row_G, shard_G = _fill_rows(ticks_G, instance.num_shards)
    else:
        row_G, shard_G = _balance_shards(
            ticks_G, instance.num_rows, instance.num_shards
        )
    rank_SH = np.argsort(instance.shard_of_rank_D, kind="stable").reshape(
        instance.num_shards, -1
    )
    rank_X = rank_SH[shard_G[group_X], member_X]
    return Layout(
        row_I=row_G[group_I],
        rank_I=rank_X[cell_I],
        num_rows=instance.num_rows,
    )


def deal(instance: LayoutInstance, cell_I: Int64Array) -> Layout:
    """Deal R x dp cells, in their order, to the DP ranks in turn."""
    row_I, rank_I = np.divmod(cell_I, instance.num_ranks)
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)


def _balance_shards(
    ticks_G: Int64Array, num_rows: int, num_shards: int
) -> tuple[Int64Array, Int64Array]:
    """Give groups, largest first, to the shard with the smallest sum so far."""
    row_G, shard_G = np.empty_like(ticks_G), np.empty_like(ticks_G)
    shards = [(0, shard, 0) for shard in range(num_shards)]
    for group in np.argsort(-ticks_G, kind="stable").tolist():
        total, shard, used = heapq.heappop(shards)
        row_G[group], shard_G[group] = used, shard
        if used + 1 < num_rows:
            heapq.heappush(shards, (total + int(ticks_G[group]), shard, used + 1))
    return row_G, shard_G


def _fill_rows(ticks_G: Int64Array, num_shards: int) -> tuple[Int64Array, Int64Array]:
    """Fill the rows one after the other with the largest groups left."""
    place_G = np.empty_like(ticks_G)
    place_G[np.argsort(-ticks_G, kind="stable")] = np.arange(ticks_G.size)
    row_G, shard_G = np.divmod(place_G, num_shards)
    return row_G, shard_G


def split_cells(
    instance: LayoutInstance, cell_I: Int64Array, cost_I: Int64Array | None = None
) -> Int64Array:
    """Split the cells of a packing until there are R x dp, none of them empty.

    The dearest cell is split first, its items dealt to the cheaper of two halves. The
    cells that are left keep their order, the new ones come last.

    Parameters
    ----------
    cell_I
        Cell of each item; numbers may be missing.
    cost_I
        What makes a cell dear; its attention when left out.

    Raises
    ------
    InfeasibleError
        When the packing has more cells than the layout.
    """
    cost_I = instance.attention_ticks_IC.sum(axis=1) if cost_I is None else cost_I
    cost: list[int] = cost_I.tolist()
    used, number_I = np.unique(cell_I, return_inverse=True)
    if used.size > instance.num_cells:
        raise InfeasibleError(
            f"a packing of {used.size} cells does not fit {instance.num_rows} rows x"
            f" {instance.num_ranks} ranks"
        )
    cells: list[list[int]] = [[] for _ in used]
    for item, number in enumerate(number_I.tolist()):
        cells[number].append(item)
    heap = [(-sum(cost[i] for i in c), k) for k, c in enumerate(cells) if len(c) > 1]
    heapq.heapify(heap)
    while len(cells) < instance.num_cells:
        number = heapq.heappop(heap)[1]
        cells[number], half = _halves(cells[number], cost)
        cells.append(half)
        for k in (number, len(cells) - 1):
            if len(cells[k]) > 1:
                heapq.heappush(heap, (-sum(cost[i] for i in cells[k]), k))
    split_I = np.empty(instance.num_items, dtype=np.int64)
    for number, items in enumerate(cells):
        split_I[items] = number
    return split_I


def fill_empty(instance: LayoutInstance, cell_I: Int64Array) -> Int64Array:
    """Fill each empty one of R x dp cells with half of the dearest cell's items."""
    used = np.unique(cell_I)
    empty = np.setdiff1d(np.arange(instance.num_cells), used)
    filled_I: Int64Array = np.concatenate([used, empty])[split_cells(instance, cell_I)]
    return filled_I


def _halves(items: list[int], cost: list[int]) -> tuple[list[int], list[int]]:
    """Deal two or more items, dearest first, to the cheaper half."""
    halves: tuple[list[int], list[int]] = ([], [])
    total = [0, 0]
    for item in sorted(items, key=lambda i: -cost[i]):
        cheaper = int((total[1], len(halves[1])) < (total[0], len(halves[0])))
        halves[cheaper].append(item)
        total[cheaper] += cost[item]
    return halves
