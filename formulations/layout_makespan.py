"""Layout of items over rows and ranks for a given placement: smallest J.

Page: docs/formulations/layout_makespan.md. The root relaxation equals the volume bound
or comes close to it, so this is an oracle for small instances and a reference.
"""

from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations import layout_cells
from formulations.layout_cells import in_group, set_start, solution, ticks
from rpopt.layout.instance import LayoutInstance

__all__ = ["build", "set_start", "solution", "ticks"]


def build(instance: LayoutInstance) -> Any:
    """Return the Pyomo model; its optimum is a whole number.

    With `m.shift` = 0 it is the ticks of J less the offset, else a little less than
    that shifted down: `ticks` turns a bound on it into one on J.
    """
    m = pyo.ConcreteModel("layout_makespan")
    layout_cells.add_cells(m, instance)
    weight_L1 = instance.layer_weight_ticks_L[:, None]
    m.load = ((instance.load_ILP.astype(np.int64) * weight_L1) >> m.shift).tolist()
    m.P = pyo.RangeSet(0, instance.load_ILP.shape[2] - 1)
    costly_L = instance.load_ILP.any(axis=(0, 2)) & (instance.layer_weight_ticks_L > 0)
    layout_cells.add_objective(m, instance, np.flatnonzero(costly_L).tolist())
    m.eq9_expert_peak = pyo.Constraint(m.B, m.J, m.L, m.P, rule=expert_peak)
    return m


def expert_peak(m: Any, b: int, j: int, k: int, q: int) -> Any:
    """(9) No EP rank of a group costs more in a layer than its peak."""
    load = pyo.quicksum(m.load[i][k][q] * in_group(m, i, b, j) for i in m.I)
    return load <= m.expert_peak[b, j, k]
