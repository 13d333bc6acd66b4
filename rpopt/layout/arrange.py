"""From cells to a layout: which cells meet in a group, and which groups in a shard.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, R rows, S shards,
G groups, X cells.
"""

import heapq

import numpy as np

from rpopt.errors import InfeasibleError
from rpopt.layout.evaluate import group_totals, peaks
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array


def arrange(instance: LayoutInstance, cell_I: Int64Array) -> Layout:
    """Turn R x dp nonempty cells into a layout.

    The ranks of a group wait for the largest of them, so cells of similar attention
    form a group. Groups then go to the shards largest first, each to the shard with
    the smallest sum that still has a free row.

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
    row_G, shard_G = _deal(ticks_G, instance.num_rows, instance.num_shards)
    ranks_SH = np.argsort(instance.shard_of_rank_D, kind="stable").reshape(
        instance.num_shards, -1
    )
    rank_X = ranks_SH[shard_G[group_X], member_X]
    return Layout(
        row_I=row_G[group_I],
        rank_I=rank_X[cell_I],
        num_rows=instance.num_rows,
    )


def _deal(
    ticks_G: Int64Array, num_rows: int, num_shards: int
) -> tuple[Int64Array, Int64Array]:
    """Deal groups, largest first, to the shard with the smallest sum so far."""
    row_G, shard_G = np.empty_like(ticks_G), np.empty_like(ticks_G)
    shards = [(0, shard, 0) for shard in range(num_shards)]
    for group in np.argsort(-ticks_G, kind="stable").tolist():
        total, shard, used = heapq.heappop(shards)
        row_G[group], shard_G[group] = used, shard
        if used + 1 < num_rows:
            heapq.heappush(shards, (total + int(ticks_G[group]), shard, used + 1))
    return row_G, shard_G


def split_cells(instance: LayoutInstance, cell_I: Int64Array) -> Int64Array:
    """Split the cells of a packing until there are R x dp, none of them empty.

    The cell with the most attention is split first, its items dealt to the lighter of
    two halves.

    Raises
    ------
    InfeasibleError
        When the packing has more cells than the layout.
    """
    members: dict[int, list[int]] = {}
    for item, cell in enumerate(np.asarray(cell_I).tolist()):
        members.setdefault(cell, []).append(item)
    if len(members) > instance.num_cells:
        raise InfeasibleError(
            f"a packing of {len(members)} cells does not fit"
            f" {instance.num_rows} rows x {instance.num_ranks} ranks"
        )
    cost = instance.attention_ticks_IC.sum(axis=1).tolist()
    heap = [(-sum(cost[i] for i in items), items) for items in members.values()]
    single = [items for _, items in heap if len(items) == 1]
    heap = [entry for entry in heap if len(entry[1]) > 1]
    heapq.heapify(heap)
    while len(heap) + len(single) < instance.num_cells:
        for half in _halves(heapq.heappop(heap)[1], cost):
            if len(half) == 1:
                single.append(half)
            else:
                heapq.heappush(heap, (-sum(cost[i] for i in half), half))
    split_I = np.empty(instance.num_items, dtype=np.int64)
    for cell, items in enumerate(sorted([*single, *(items for _, items in heap)])):
        split_I[items] = cell
    return split_I


def _halves(items: list[int], cost: list[int]) -> tuple[list[int], list[int]]:
    first: list[int] = []
    second: list[int] = []
    difference = 0
    for item in sorted(items, key=lambda i: (-cost[i], i)):
        if difference < 0 or (difference == 0 and len(first) <= len(second)):
            first.append(item)
            difference += cost[item]
        else:
            second.append(item)
            difference -= cost[item]
    if not second:
        second.append(first.pop())
    return first, second
