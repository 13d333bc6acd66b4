"""Placement and layout at once: the MIQP, linearised exactly.

Page: docs/formulations/joint_linearised.md. What a group wants from an expert is one
continuous number, so its product with a binary needs one variable per group, layer,
expert and EP rank, and not one per item.
"""

from typing import Any

import pyomo.environ as pyo

from formulations.joint_quadratic import add_placement, group_demand, placed, solution
from formulations.layout_cells import ticks
from rpopt.layout.instance import LayoutInstance
from rpopt.records import Int64Array

__all__ = ["build", "placed", "solution", "ticks"]


def build(instance: LayoutInstance, *, demand_ILE: Int64Array) -> Any:
    """Return the linear Pyomo model; arguments as in `joint_quadratic.build`.

    Its optimum is a whole number; `ticks` turns a bound on it into one on J.
    """
    m = pyo.ConcreteModel("joint_linearised")
    add_placement(m, instance, demand_ILE)
    m.total = [[sum(m.demand[i][k][e] for i in m.I) for e in m.E] for k in m.L]
    m.part = pyo.Var(m.B, m.J, m.L, m.E, m.P, domain=pyo.NonNegativeReals)
    m.eq9_expert_peak = pyo.Constraint(m.B, m.J, m.L, m.P, rule=expert_peak)
    m.eq14_all_demand = pyo.Constraint(m.B, m.J, m.L, m.E, rule=all_demand)
    m.eq15_only_there = pyo.Constraint(m.L, m.E, m.P, rule=only_there)
    return m


def expert_peak(m: Any, b: int, j: int, k: int, q: int) -> Any:
    """(9) No EP rank of a group costs more in a layer than its peak."""
    return pyo.quicksum(m.part[b, j, k, e, q] for e in m.E) <= m.expert_peak[b, j, k]


def all_demand(m: Any, b: int, j: int, k: int, e: int) -> Any:
    """(14) A group's demand of an expert goes to the EP ranks."""
    sent = pyo.quicksum(m.part[b, j, k, e, q] for q in m.P)
    return sent == group_demand(m, b, j, k, e)


def only_there(m: Any, k: int, e: int, q: int) -> Any:
    """(15) It goes to the EP rank of the expert alone, from all groups together."""
    sent = pyo.quicksum(m.part[b, j, k, e, q] for b in m.B for j in m.J)
    return sent == m.total[k][e] * m.at[k, e, q]
