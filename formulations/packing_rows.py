"""Do the cells of R rows suffice? A packing into exactly R x D nonempty cells.

Page: docs/formulations/packing_rows.md. It has no objective: a search may stop at the
first packing, and a proof that there is none certifies the next multiple of rows.
"""

from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.packing_assignment import every_item_once, set_items
from rpopt.errors import InfeasibleError, InstanceError
from rpopt.packing.instance import PackingInstance, PackingSolution


def build(instance: PackingInstance, *, num_rows: int) -> Any:
    """Return the Pyomo model, feasible if and only if `num_rows` rows suffice.

    Raises
    ------
    InstanceError
        When `num_rows` is not a positive multiple of the instance's row multiple.
    InfeasibleError
        When there are fewer items than cells, so that one would be empty.
    """
    if num_rows < 1 or num_rows % instance.row_multiple:
        raise InstanceError(
            f"{num_rows} rows; the instance asks for a positive multiple of"
            f" {instance.row_multiple}"
        )
    num_cells = num_rows * instance.num_ranks
    if instance.num_items < num_cells:
        raise InfeasibleError(
            f"{instance.num_items} items leave one of {num_cells} cells empty; use"
            " fewer rows or add dummies"
        )
    m = pyo.ConcreteModel("packing_rows")
    set_items(m, instance)
    m.B = pyo.RangeSet(0, num_cells - 1)
    m.IB = pyo.Set(initialize=[(i, b) for i in m.I for b in m.B if b <= i])
    m.x = pyo.Var(m.IB, domain=pyo.Binary)
    m.eq1_every_item_once = pyo.Constraint(m.I, rule=every_item_once)
    m.eq2_token_cap = pyo.Constraint(m.B, rule=token_cap)
    if instance.max_samples_per_cell is not None:
        m.eq3_samples_per_cell = pyo.Constraint(m.B, rule=samples_per_cell)
    m.eq4_no_empty_cell = pyo.Constraint(m.B, rule=no_empty_cell)
    return m


def token_cap(m: Any, b: int) -> Any:
    """(2) A cell holds at most its capacity."""
    inside = pyo.quicksum(m.weight[i] * m.x[i, b] for i in m.I if b <= i)
    return inside <= m.capacity


def samples_per_cell(m: Any, b: int) -> Any:
    """(3) A cell holds a limited number of samples."""
    inside = pyo.quicksum(m.samples[i] * m.x[i, b] for i in m.I if b <= i)
    return inside <= m.limit


def no_empty_cell(m: Any, b: int) -> Any:
    """(4) Every cell holds an item."""
    return pyo.quicksum(m.x[i, b] for i in m.I if b <= i) >= 1


def solution(instance: PackingInstance, m: Any) -> PackingSolution:
    """Return the packing that the values of a solved model stand for."""
    cell_I = np.zeros(instance.num_items, dtype=np.int64)
    for i, b in m.IB:
        if round(m.x[i, b].value) == 1:
            cell_I[m.item[i]] = b
    return PackingSolution(cell_I=cell_I)
