"""What all formulations of the layout share: items in cells, and the objective J.

Page: docs/formulations/layout_makespan.md, constraints (1) to (10).

Blocks are what J takes a maximum or a sum over first: the shards under coupling
"step", the rows under coupling "row". Position j of a block is the group in row j of
the shard, or in shard j of the row. Cells of a group, groups of a block and blocks can
be exchanged without changing J, so each of them is numbered by its first item.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks; in models: b
blocks, j groups of a block, d cells of a group, c classes, l layers, q EP ranks.
"""

from typing import Any

import numpy as np
import pyomo.environ as pyo

from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout

MODEL_UNIT_BITS = 24
"""J = 1 is at most 2 to this power in a model; see `shift_for`."""


def shift_for(instance: LayoutInstance) -> int:
    """Return by how many bits costs are shifted down, so that solvers can bear them.

    Ticks go up to 2^44 for J = 1; a solver's tolerances are about 1e-6 or 1e-9 of what
    it sees. Each coefficient is divided by a power of two and rounded *down*, so the
    model's optimum, shifted back, is a lower bound on J, at most about one shifted
    tick per item, class, layer and row below it.
    """
    return max(0, instance.unit_ticks.bit_length() - 1 - MODEL_UNIT_BITS)


def ticks(instance: LayoutInstance, m: Any, bound: int) -> int:
    """Return the ticks of J that a whole lower bound on the model's optimum proves."""
    return instance.offset_ticks + (bound << int(m.shift))


def add_cells(m: Any, instance: LayoutInstance) -> None:
    """Add sets, data, the variables x and constraints (1) to (7)."""
    by_row = instance.coupling == "row"
    blocks = instance.num_rows if by_row else instance.num_shards
    m.shift = shift_for(instance)
    m.weight, m.samples = instance.weight_I.tolist(), instance.num_samples_I.tolist()
    m.cap, m.limit = instance.token_cap, instance.max_samples_per_cell
    m.attention = (instance.attention_ticks_IC >> m.shift).tolist()
    m.I = pyo.RangeSet(0, instance.num_items - 1)
    m.B = pyo.RangeSet(0, blocks - 1)
    m.J = pyo.RangeSet(0, instance.num_groups // blocks - 1)
    m.D = pyo.RangeSet(0, instance.shard_size - 1)
    classes = np.flatnonzero(instance.attention_ticks_IC.any(axis=0)).tolist()
    m.C = pyo.Set(initialize=classes, dimen=1)
    m.x = pyo.Var(m.I, m.B, m.J, m.D, domain=pyo.Binary)
    m.eq1_every_item_once = pyo.Constraint(m.I, rule=every_item_once)
    m.eq2_token_cap = pyo.Constraint(m.B, m.J, m.D, rule=token_cap)
    m.eq3_no_empty_cell = pyo.Constraint(m.B, m.J, m.D, rule=no_empty_cell)
    if m.limit is not None:
        m.eq4_samples_per_cell = pyo.Constraint(m.B, m.J, m.D, rule=samples_per_cell)
    m.eq5_cells_in_order = pyo.Constraint(m.I, m.B, m.J, m.D, rule=cells_in_order)
    m.eq6_groups_in_order = pyo.Constraint(m.I, m.B, m.J, rule=groups_in_order)
    m.eq7_blocks_in_order = pyo.Constraint(m.I, m.B, rule=blocks_in_order)


def add_objective(m: Any, instance: LayoutInstance, layers: list[int]) -> None:
    """Add peaks of attention and experts, constraints (8) and (10), and J.

    The caller adds (9), which bounds the expert peaks from below, for these layers.
    """
    m.L = pyo.Set(initialize=layers, dimen=1)
    m.attention_peak = pyo.Var(m.B, m.J, m.C, domain=pyo.NonNegativeReals)
    m.expert_peak = pyo.Var(m.B, m.J, m.L, domain=pyo.NonNegativeReals)
    m.eq8_attention_peak = pyo.Constraint(m.B, m.J, m.D, m.C, rule=attention_peak)
    if instance.coupling == "row":
        m.row = pyo.Var(m.B, domain=pyo.NonNegativeReals)
        m.eq10_slowest = pyo.Constraint(m.B, m.J, rule=slowest_in_row)
        m.objective = pyo.Objective(expr=pyo.quicksum(m.row[b] for b in m.B))
    else:
        m.slowest = pyo.Var(domain=pyo.NonNegativeReals)
        m.eq10_slowest = pyo.Constraint(m.B, rule=slowest_shard)
        m.objective = pyo.Objective(expr=m.slowest)


def in_group(m: Any, i: int, b: int, j: int) -> Any:
    """Return 1 when item i is in group (b, j), as an expression."""
    return pyo.quicksum(m.x[i, b, j, d] for d in m.D)


def every_item_once(m: Any, i: int) -> Any:
    """(1) Every item is in one cell."""
    return pyo.quicksum(m.x[i, b, j, d] for b in m.B for j in m.J for d in m.D) == 1


def token_cap(m: Any, b: int, j: int, d: int) -> Any:
    """(2) A cell holds at most the token cap."""
    return pyo.quicksum(m.weight[i] * m.x[i, b, j, d] for i in m.I) <= m.cap


def no_empty_cell(m: Any, b: int, j: int, d: int) -> Any:
    """(3) Every cell holds an item."""
    return pyo.quicksum(m.x[i, b, j, d] for i in m.I) >= 1


def samples_per_cell(m: Any, b: int, j: int, d: int) -> Any:
    """(4) A cell holds a limited number of samples."""
    return pyo.quicksum(m.samples[i] * m.x[i, b, j, d] for i in m.I) <= m.limit


def cells_in_order(m: Any, i: int, b: int, j: int, d: int) -> Any:
    """(5) An item opens a cell only when the one before has an earlier item."""
    if d == 0:
        return pyo.Constraint.Skip
    earlier = pyo.quicksum(m.x[n, b, j, d - 1] for n in range(i))
    return m.x[i, b, j, d] <= earlier


def groups_in_order(m: Any, i: int, b: int, j: int) -> Any:
    """(6) An item opens a group only when the one before has an earlier item."""
    if j == 0:
        return pyo.Constraint.Skip
    earlier = pyo.quicksum(in_group(m, n, b, j - 1) for n in range(i))
    return in_group(m, i, b, j) <= earlier


def blocks_in_order(m: Any, i: int, b: int) -> Any:
    """(7) An item opens a block only when the one before has an earlier item."""
    if b == 0:
        return pyo.Constraint.Skip
    earlier = pyo.quicksum(in_group(m, n, b - 1, j) for n in range(i) for j in m.J)
    return pyo.quicksum(in_group(m, i, b, j) for j in m.J) <= earlier


def attention_peak(m: Any, b: int, j: int, d: int, c: int) -> Any:
    """(8) No cell of a group has more attention of a class than its peak."""
    inside = pyo.quicksum(m.attention[i][c] * m.x[i, b, j, d] for i in m.I)
    return inside <= m.attention_peak[b, j, c]


def group_cost(m: Any, b: int, j: int) -> Any:
    """Return the cost of a group, as an expression."""
    attention = pyo.quicksum(m.attention_peak[b, j, c] for c in m.C)
    return attention + pyo.quicksum(m.expert_peak[b, j, k] for k in m.L)


def slowest_shard(m: Any, b: int) -> Any:
    """(10) Coupling step: no shard costs more over its rows than the slowest."""
    return pyo.quicksum(group_cost(m, b, j) for j in m.J) <= m.slowest


def slowest_in_row(m: Any, b: int, j: int) -> Any:
    """(10) Coupling row: no shard costs more in a row than its slowest."""
    return group_cost(m, b, j) <= m.row[b]


def set_start(instance: LayoutInstance, m: Any, layout: Layout) -> None:
    """Set the cells of a feasible layout, numbered as (5) to (7) demand."""
    by_row = instance.coupling == "row"
    rank_order = np.argsort(instance.shard_of_rank_D, kind="stable")
    member_D = np.empty_like(rank_order)
    member_D[rank_order] = np.arange(rank_order.size) % instance.shard_size
    shard_I = instance.shard_of_rank_D[layout.rank_I]
    block_I = layout.row_I if by_row else shard_I
    group_I = layout.row_I * instance.num_shards + shard_I
    places = zip(
        block_I.tolist(),
        group_I.tolist(),
        member_D[layout.rank_I].tolist(),
        strict=True,
    )
    number: dict[Any, int] = {}
    count: dict[Any, int] = {}
    for i, (block, group, member) in enumerate(places):
        parts = (block,), (block, group), (block, group, member)
        for part in parts:
            if part not in number:
                number[part] = count.get(part[:-1], 0)
                count[part[:-1]] = number[part] + 1
        chosen = tuple(number[part] for part in parts)
        for b, j, d in ((b, j, d) for b in m.B for j in m.J for d in m.D):
            m.x[i, b, j, d].set_value(int((b, j, d) == chosen))


def solution(instance: LayoutInstance, m: Any) -> Layout:
    """Return the layout that the values of a solved model stand for."""
    by_row = instance.coupling == "row"
    ranks_of_shard_SD = np.argsort(instance.shard_of_rank_D, kind="stable").reshape(
        instance.num_shards, -1
    )
    row_I = np.zeros(instance.num_items, dtype=np.int64)
    rank_I = np.zeros(instance.num_items, dtype=np.int64)
    for i, b, j, d in m.x:
        if round(m.x[i, b, j, d].value) == 1:
            row_I[i] = b if by_row else j
            rank_I[i] = ranks_of_shard_SD[j if by_row else b, d]
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)
