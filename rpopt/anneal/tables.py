"""Layout instances as the engines see them: whole-number tables, cells and groups.

A cell is c = g h + j with group g = row S + shard and j the position of the rank in its
shard. One item more than there are, *nobody*, weighs nothing, so that moving one item
is a swap with nobody. The slowest path is one rule for both couplings: J is the sum
over parts of the largest entry of a part. Coupling "step" has one part, with an entry
per shard; coupling "row" has a part per row, with an entry per group.

Axis letters: B replicas, I items (+1: with nobody), K cells, G groups, C attention
classes, H sizes, L MoE layers (padded with weightless ones),
P EP ranks, X = P L, S shards, V entries.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rpopt.anneal.fixed import neglog_table
from rpopt.anneal.moves import PATTERN
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array, IntArray

_LANES = 8  # layers are padded to full vector registers
_MEAN_SHARE_BITS = 1
_UNLIMITED = 2**62


class Tables(NamedTuple):
    """The constants of one instance; what a compiled loop can read.

    Parameters
    ----------
    size_IH
        What each item brings into a cell, in the engines' item order: tokens, samples,
        items (1; nobody 0), and the ticks it costs a perfectly balanced group at least.
    attention_IC
        Attention ticks of each item.
    load_IX
        Token copies, EP rank by EP rank, all layers of one after the other.
    layer_weight_L
        Ticks per token copy.
    group_K, entry_G, part_G
        Group of each cell; entry and part of each group.
    neglog_U, pattern
        Acceptance table and kinds of moves.
    num_shards, shard_size, num_ep_ranks, token_cap, sample_limit, offset_ticks
        As in the instance; no limit of samples is a large number.
    mean_shift
        Energy = J + (sum of all groups' ticks >> mean_shift).
    """

    size_IH: Int64Array
    attention_IC: Int64Array
    load_IX: npt.NDArray[np.int32]
    layer_weight_L: IntArray
    group_K: Int64Array
    entry_G: Int64Array
    part_G: Int64Array
    neglog_U: npt.NDArray[np.int32]
    pattern: Int64Array
    num_shards: int
    shard_size: int
    num_ep_ranks: int
    token_cap: int
    sample_limit: int
    offset_ticks: int
    mean_shift: int

    @property
    def num_items(self) -> int:
        """I, without nobody."""
        return self.size_IH.shape[0] - 1


class Geometry:
    """The tables of an instance, and the way between layouts and cells.

    Parameters
    ----------
    instance
        What to anneal.
    wide
        Whether 64-bit loads and 32-bit cells are needed; None decides by proven bounds.
    """

    def __init__(self, instance: LayoutInstance, *, wide: bool | None = None) -> None:
        self.instance = instance
        self.wide = needs_wide(instance) if wide is None else wide
        attention_I = instance.attention_ticks_IC.sum(axis=1)
        self.order_I = np.lexsort((instance.weight_I, attention_I))
        by_shard_D = np.argsort(instance.shard_of_rank_D, kind="stable")
        self._rank_of_position_D = by_shard_D
        self._position_of_rank_D = np.argsort(by_shard_D)
        self.tables = _tables(instance, self.order_I, self.wide)

    @property
    def cell_dtype(self) -> npt.DTypeLike:
        """Integer type that holds an item or a cell."""
        return np.int32 if self.wide else np.int16

    @property
    def load_dtype(self) -> npt.DTypeLike:
        """Integer type that holds a group's load."""
        return np.int64 if self.wide else np.int32

    def cells(self, layout: Layout) -> Int64Array:
        """Return the cell of each item in the engines' item order, int64 [I]."""
        position_I = self._position_of_rank_D[layout.rank_I]
        cell_I: Int64Array = layout.row_I * self.instance.num_ranks + position_I
        return cell_I[self.order_I]

    def layout(self, cell_I: IntArray) -> Layout:
        """Return the layout of cells in the engines' item order."""
        cell = np.empty(self.instance.num_items, dtype=np.int64)
        cell[self.order_I] = cell_I
        row_I, position_I = np.divmod(cell, self.instance.num_ranks)
        return Layout(
            row_I=row_I,
            rank_I=self._rank_of_position_D[position_I],
            num_rows=self.instance.num_rows,
        )


def needs_wide(instance: LayoutInstance) -> bool:
    """Return whether any group load, layer weight or index may leave the small types.

    No group's load exceeds the load of all items together.
    """
    load_LP = instance.load_ILP.sum(axis=0, dtype=np.int64)
    largest = max(load_LP.max(initial=0), instance.layer_weight_ticks_L.max(initial=0))
    return bool(largest >= 2**31) or instance.num_items >= 2**15 - 1


def _tables(instance: LayoutInstance, order_I: Int64Array, wide: bool) -> Tables:
    num_items, num_layers, num_ranks = instance.load_ILP.shape
    num_ranks = num_ranks if num_layers and num_ranks else 1
    padded = max(1, -(-num_layers // _LANES)) * _LANES
    load_IPL = np.zeros((num_items + 1, num_ranks, padded), dtype=np.int32)
    if num_layers and instance.load_ILP.size:
        load_IPL[:-1, :, :num_layers] = instance.load_ILP[order_I].transpose(0, 2, 1)
    weight_L = np.zeros(padded, dtype=np.int64 if wide else np.int32)
    weight_L[:num_layers] = instance.layer_weight_ticks_L
    volume_I = (load_IPL[:-1].sum(axis=1, dtype=np.int64) * weight_L).sum(axis=1)
    shards, group_G = instance.num_shards, np.arange(instance.num_groups)
    shard_G, row_G = group_G % shards, group_G // shards
    step = instance.coupling == "step"
    limit = instance.max_samples_per_cell
    size_HI = [instance.weight_I, instance.num_samples_I, np.ones_like(order_I)]
    size_IH = np.stack([value_I[order_I] for value_I in size_HI], axis=1)
    size_IH = np.column_stack([size_IH, volume_I // num_ranks])
    return Tables(
        size_IH=_with_nobody(size_IH),
        attention_IC=_with_nobody(instance.attention_ticks_IC[order_I]),
        load_IX=load_IPL.reshape(num_items + 1, -1),
        layer_weight_L=weight_L,
        group_K=np.repeat(group_G, instance.shard_size),
        entry_G=shard_G if step else group_G,
        part_G=np.zeros_like(row_G) if step else row_G,
        neglog_U=neglog_table(),
        pattern=np.array(PATTERN, dtype=np.int64),
        num_shards=shards,
        shard_size=instance.shard_size,
        num_ep_ranks=num_ranks,
        token_cap=instance.token_cap,
        sample_limit=_UNLIMITED if limit is None else limit,
        offset_ticks=instance.offset_ticks,
        mean_shift=_MEAN_SHARE_BITS + (shards - 1).bit_length(),
    )


def _with_nobody(value_IX: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Append a row of zeros."""
    nobody = np.zeros((1, value_IX.shape[1]), dtype=value_IX.dtype)
    return np.concatenate([value_IX, nobody])


class Sums(NamedTuple):
    """What engines keep of some replicas beside their cells, computed from scratch."""

    size_BKH: Int64Array
    attention_BKC: Int64Array
    load_BGX: Int64Array
    expert_BG: Int64Array
    ticks_BG: Int64Array
    entry_BV: Int64Array
    total_B: Int64Array
    energy_B: Int64Array


def sums(tables: Tables, cell_BI: IntArray) -> Sums:
    """Return the sums of replicas, given their cells."""
    parts = [_sums_of_one(tables, cell_I) for cell_I in cell_BI]
    return Sums(*(np.array(values) for values in zip(*parts, strict=True)))


def _sums_of_one(t: Tables, cell_I: IntArray) -> tuple[Any, ...]:
    num_groups, num_cells = t.entry_G.size, t.group_K.size
    size_KH = _sum_by(t.size_IH[:-1], cell_I, num_cells)
    attention_KC = _sum_by(t.attention_IC[:-1], cell_I, num_cells)
    load_GX = _sum_by(t.load_IX[:-1], t.group_K[cell_I], num_groups)
    load_GPL = load_GX.reshape(num_groups, t.num_ep_ranks, -1)
    expert_G = (load_GPL.max(axis=1) * t.layer_weight_L).sum(axis=1)
    attention_GhC = attention_KC.reshape(num_groups, t.shard_size, -1)
    ticks_G = attention_GhC.max(axis=1).sum(axis=1) + expert_G
    entry_V = _sum_by(ticks_G, t.entry_G, int(t.entry_G.max()) + 1)
    total = ticks_G.sum()
    slowest = entry_V.reshape(-1, t.num_shards).max(axis=1).sum() + t.offset_ticks
    energy = slowest + (total >> t.mean_shift)
    return size_KH, attention_KC, load_GX, expert_G, ticks_G, entry_V, total, energy


def _sum_by(value_IX: IntArray, index_I: IntArray, count: int) -> Int64Array:
    """Sum rows by index; every index must occur, as it does without empty cells."""
    order_I = np.argsort(index_I, kind="stable")
    first = np.searchsorted(index_I[order_I], np.arange(count))
    total: Int64Array = np.add.reduceat(
        value_IX[order_I], first, axis=0, dtype=np.int64
    )
    return total
