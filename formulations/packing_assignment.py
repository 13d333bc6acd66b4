"""Packing as an assignment of items to cells: the readable reference.

Page: docs/formulations/packing_assignment.md. Its relaxation is no better than the
total weight over the capacity, so it teaches more than it certifies.

Items are numbered by falling weight inside the model.
"""

from typing import Any

import numpy as np
import pyomo.environ as pyo

from rpopt.packing.instance import PackingInstance, PackingSolution


def build(instance: PackingInstance, *, num_cells: int | None = None) -> Any:
    """Return the Pyomo model; its optimum is the fewest cells.

    Parameters
    ----------
    instance
        The packing instance.
    num_cells
        Cells to choose from, such as those of a known packing; by default one per
        item. With too few the model is infeasible.
    """
    m = pyo.ConcreteModel("packing_assignment")
    set_items(m, instance)
    m.B = pyo.RangeSet(0, (num_cells or instance.num_items) - 1)
    m.IB = pyo.Set(initialize=[(i, b) for i in m.I for b in m.B if b <= i])
    m.x = pyo.Var(m.IB, domain=pyo.Binary)
    m.y = pyo.Var(m.B, domain=pyo.Binary)
    m.eq1_every_item_once = pyo.Constraint(m.I, rule=every_item_once)
    m.eq2_token_cap = pyo.Constraint(m.B, rule=token_cap)
    m.eq3_used_cells = pyo.Constraint(m.IB, rule=used_cells)
    if instance.max_samples_per_cell is not None:
        m.eq4_samples_per_cell = pyo.Constraint(m.B, rule=samples_per_cell)
    m.eq5_cells_in_order = pyo.Constraint(m.B, rule=cells_in_order)
    m.num_cells = pyo.Objective(expr=pyo.quicksum(m.y[b] for b in m.B))
    return m


def set_items(m: Any, instance: PackingInstance) -> None:
    """Store the items by falling weight; `m.item` maps back to the instance."""
    order = np.argsort(-instance.weight_I, kind="stable")
    m.item = order.tolist()
    m.weight = instance.weight_I[order].tolist()
    m.samples = instance.samples_I[order].tolist()
    m.capacity, m.limit = instance.capacity, instance.max_samples_per_cell
    m.I = pyo.RangeSet(0, instance.num_items - 1)


def every_item_once(m: Any, i: int) -> Any:
    """(1) Every item is in one cell; none needs a cell after its own number."""
    return pyo.quicksum(m.x[i, b] for b in m.B if b <= i) == 1


def token_cap(m: Any, b: int) -> Any:
    """(2) A used cell holds at most its capacity, an unused one nothing."""
    inside = pyo.quicksum(m.weight[i] * m.x[i, b] for i in m.I if b <= i)
    return inside <= m.capacity * m.y[b]


def used_cells(m: Any, i: int, b: int) -> Any:
    """(3) Items are in used cells: implied for whole numbers, not for shares."""
    return m.x[i, b] <= m.y[b]


def samples_per_cell(m: Any, b: int) -> Any:
    """(4) A used cell holds a limited number of samples."""
    inside = pyo.quicksum(m.samples[i] * m.x[i, b] for i in m.I if b <= i)
    return inside <= m.limit * m.y[b]


def cells_in_order(m: Any, b: int) -> Any:
    """(5) Cells are used from the first one on."""
    return m.y[b] <= m.y[b - 1] if b else pyo.Constraint.Skip


def solution(instance: PackingInstance, m: Any) -> PackingSolution:
    """Return the packing that the values of a solved model stand for."""
    cell_I = np.zeros(instance.num_items, dtype=np.int64)
    for i, b in m.IB:
        if round(m.x[i, b].value) == 1:
            cell_I[m.item[i]] = b
    _, dense_I = np.unique(cell_I, return_inverse=True)
    return PackingSolution(cell_I=dense_I)
