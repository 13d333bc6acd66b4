"""The exact evaluator of layouts: integer ticks, broken down.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, D DP ranks,
R rows, S shards, G groups.
"""

from dataclasses import dataclass

import numpy as np

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
    offset_ticks, unit_ticks
        J = j_ticks / unit_ticks; the offset is part of `j_ticks`.
    j_ticks
        The objective.
    """

    attention_ticks_RSC: Int64Array
    expert_ticks_RSL: Int64Array
    peak_load_RSL: Int64Array
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

    @property
    def j(self) -> float:
        """J; 1 is perfect balance."""
        return self.j_ticks / self.unit_ticks

    @property
    def balance_efficiency(self) -> float:
        """1 / J."""
        return self.unit_ticks / self.j_ticks


def evaluate(instance: LayoutInstance, layout: Layout) -> LayoutCost:
    """Return the exact cost of a layout (design formula for J, rounded data)."""
    num_rows, num_shards = instance.num_rows, instance.num_shards
    cell_I = layout.row_I * instance.num_ranks + layout.rank_I
    group_I = layout.row_I * num_shards + instance.shard_of_rank_D[layout.rank_I]
    attention_cells = _sum_by(instance.attention_ticks_IC, cell_I, instance.num_cells)
    attention_RDC = attention_cells.reshape(num_rows, instance.num_ranks, -1)
    rank_of_shard_SH = np.argsort(instance.shard_of_rank_D, kind="stable").reshape(
        num_shards, -1
    )
    attention_RSC = attention_RDC[:, rank_of_shard_SH].max(axis=2)
    num_layers = instance.load_ILP.shape[1]
    flat = instance.load_ILP.reshape(instance.num_items, -1)
    load_GLP = _sum_by(flat, group_I, instance.num_groups).reshape(
        instance.num_groups, num_layers, -1
    )
    peak_GL = (
        load_GLP.max(axis=2)
        if load_GLP.size
        else np.zeros((instance.num_groups, num_layers), dtype=np.int64)
    )
    peak_RSL = peak_GL.reshape(num_rows, num_shards, num_layers)
    expert_RSL = peak_RSL * instance.layer_weight_ticks_L
    group_RS = attention_RSC.sum(axis=2) + expert_RSL.sum(axis=2)
    if instance.coupling == "step":
        slowest = group_RS.sum(axis=0).max()
    else:
        slowest = group_RS.max(axis=1).sum()
    return LayoutCost(
        attention_ticks_RSC=attention_RSC,
        expert_ticks_RSL=expert_RSL,
        peak_load_RSL=peak_RSL,
        offset_ticks=instance.offset_ticks,
        unit_ticks=instance.unit_ticks,
        j_ticks=int(slowest) + instance.offset_ticks,
    )


def _sum_by(values_IX: np.ndarray, index_I: Int64Array, count: int) -> Int64Array:
    """Sum the rows of a matrix by index, in int64; absent indices give 0."""
    order = np.argsort(index_I, kind="stable")
    present, start = np.unique(index_I[order], return_index=True)
    total = np.zeros((count, values_IX.shape[1]), dtype=np.int64)
    if present.size:
        total[present] = np.add.reduceat(
            values_IX[order], start, axis=0, dtype=np.int64
        )
    return total
