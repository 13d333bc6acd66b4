"""The exact evaluator of layouts: integer ticks, broken down.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, D DP ranks,
R rows, S shards, G groups.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCost:
    """What a layout costs, in integer ticks.

    Parameters
    ----------
    attention_ticks_RSC
        Largest attention over the ranks of each group, per class.
    expert_ticks_RSL
        Weighted peak load over the EP ranks of each group, per layer.
    peak_load_RSL
        The same peaks in token copies.
    critical_shard_R
        The shard that J counts in each row: the slowest one, of the whole step or of
        the row.
    offset_ticks, unit_ticks
        J = j_ticks / unit_ticks; the offset is part of `j_ticks`.
    j_ticks
        The objective.
    """

    attention_ticks_RSC: Int64Array
    expert_ticks_RSL: Int64Array
    peak_load_RSL: Int64Array
    critical_shard_R: Int64Array
    offset_ticks: int
    unit_ticks: int
    j_ticks: int

    @property
    def group_ticks_RS(self) -> Int64Array:
        """Ticks of each group."""
        return self.attention_ticks_RSC.sum(axis=2) + self.expert_ticks_RSL.sum(axis=2)

    @property
    def shard_ticks_S(self) -> Int64Array:
        """Ticks of each shard over all rows, without the offset."""
        return self.group_ticks_RS.sum(axis=0)

    @property
    def row_ticks_R(self) -> Int64Array:
        """Ticks of the slowest shard in each row, without the offset."""
        return self.group_ticks_RS.max(axis=1)

    def critical(self, ticks_RSX: Int64Array) -> Int64Array:
        """Return the rows of a [R, S, ...] breakdown that J counts, [R, ...]."""
        return ticks_RSX[np.arange(self.critical_shard_R.size), self.critical_shard_R]

    @property
    def j(self) -> float:
        """J; 1 is perfect balance."""
        return self.j_ticks / self.unit_ticks

    @property
    def balance_efficiency(self) -> float:
        """1 / J."""
        return self.unit_ticks / self.j_ticks


def evaluate(instance: LayoutInstance, layout: Layout) -> LayoutCost:
    """Return the exact cost of a layout: the formula for J on the rounded data."""
    group_I, member_I = group_and_member(instance, layout)
    attention_GC, load_GLP = group_totals(instance, group_I, member_I)
    shape = (instance.num_rows, instance.num_shards, -1)
    attention_RSC = attention_GC.reshape(*shape[:2], attention_GC.shape[1])
    peak_RSL = peaks(load_GLP).reshape(*shape[:2], load_GLP.shape[1])
    expert_RSL = peak_RSL * instance.layer_weight_ticks_L
    group_RS = attention_RSC.sum(axis=2) + expert_RSL.sum(axis=2)
    if instance.coupling == "step":
        critical_R = np.full(instance.num_rows, group_RS.sum(axis=0).argmax())
    else:
        critical_R = group_RS.argmax(axis=1)
    slowest = group_RS[np.arange(instance.num_rows), critical_R].sum()
    return LayoutCost(
        attention_ticks_RSC=attention_RSC,
        expert_ticks_RSL=expert_RSL,
        peak_load_RSL=peak_RSL,
        critical_shard_R=critical_R,
        offset_ticks=instance.offset_ticks,
        unit_ticks=instance.unit_ticks,
        j_ticks=int(slowest) + instance.offset_ticks,
    )


def group_and_member(
    instance: LayoutInstance, layout: Layout
) -> tuple[Int64Array, Int64Array]:
    """Return group (row x S + shard) and place among the shard's ranks, [I] each."""
    rank_order = np.argsort(instance.shard_of_rank_D, kind="stable")
    member_D = np.empty_like(rank_order)
    member_D[rank_order] = np.arange(rank_order.size) % instance.shard_size
    shard_I = instance.shard_of_rank_D[layout.rank_I]
    return layout.row_I * instance.num_shards + shard_I, member_D[layout.rank_I]


def group_totals(
    instance: LayoutInstance, group_I: Int64Array, member_I: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return what each group waits for and receives.

    Returns
    -------
    attention_GC
        Largest attention over the group's ranks, in ticks.
    load_GLP
        Token copies received by each EP rank.
    """
    groups, size = instance.num_groups, instance.shard_size
    cells = _sum_by(
        instance.attention_ticks_IC, group_I * size + member_I, groups * size
    )
    attention_GC = cells.reshape(groups, size, cells.shape[1]).max(axis=1)
    load_GX = _sum_by(
        instance.load_ILP.reshape(instance.num_items, -1), group_I, groups
    )
    return attention_GC, load_GX.reshape(groups, *instance.load_ILP.shape[1:])


def peaks(load_GLP: Int64Array) -> Int64Array:
    """Return the largest load over the EP ranks, [G, L]."""
    return load_GLP.max(axis=2, initial=0)


def _sum_by(values_IX: npt.NDArray[Any], index_I: Int64Array, count: int) -> Int64Array:
    """Sum the rows of a matrix by index, in int64; absent indices give 0."""
    order = np.argsort(index_I, kind="stable")
    present, start = np.unique(index_I[order], return_index=True)
    total = np.zeros((count, values_IX.shape[1]), dtype=np.int64)
    if present.size:
        sums = np.add.reduceat(values_IX[order], start, axis=0, dtype=np.int64)
        total[present] = sums
    return total
