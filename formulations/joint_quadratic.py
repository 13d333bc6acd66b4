"""Placement and layout at once: a mixed-integer quadratic program, as a statement.

Page: docs/formulations/joint_quadratic.md. Which expert sits where times which item is
where is a product of binaries. HiGHS refuses mixed-integer quadratic models, so this
one is read and evaluated; `joint_linearised` is the same problem as a linear program.

Axis letters: I items, L MoE layers, E experts, P EP ranks.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyomo.environ as pyo

from formulations import layout_cells
from formulations.layout_cells import in_group, ticks
from rpopt.errors import InstanceError
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout, Placement
from rpopt.records import Int64Array

__all__ = ["build", "placed", "solution", "ticks"]


def build(instance: LayoutInstance, *, demand_ILE: Int64Array) -> Any:
    """Return the quadratic Pyomo model.

    Parameters
    ----------
    instance
        The layout instance; of its loads only the shape is used.
    demand_ILE
        Token copies that each item wants per layer and expert, int64 [I, L, E].
    """
    m = pyo.ConcreteModel("joint_quadratic")
    add_placement(m, instance, demand_ILE)
    m.eq9_expert_peak = pyo.Constraint(m.B, m.J, m.L, m.P, rule=expert_peak)
    return m


def add_placement(m: Any, instance: LayoutInstance, demand_ILE: Int64Array) -> None:
    """Add cells, J, the variables `at` and constraints (11) to (13)."""
    layout_cells.add_cells(m, instance)
    num_layers, num_experts = demand_ILE.shape[1:]
    num_ranks = instance.load_ILP.shape[2]
    if demand_ILE.shape[0] != instance.num_items or num_experts % num_ranks:
        raise InstanceError(
            f"demand of shape {demand_ILE.shape} does not fit {instance.num_items}"
            f" items and {num_ranks} EP ranks"
        )
    order_LE = np.argsort(-demand_ILE.sum(axis=0), axis=1, kind="stable")
    sorted_ILE = np.take_along_axis(demand_ILE, order_LE[None], axis=2)
    weight_L1 = instance.layer_weight_ticks_L[:, None]
    m.expert = order_LE.tolist()
    m.demand = ((sorted_ILE * weight_L1) >> m.shift).tolist()
    m.per_rank = num_experts // num_ranks
    m.E = pyo.RangeSet(0, num_experts - 1)
    m.P = pyo.RangeSet(0, num_ranks - 1)
    layout_cells.add_objective(m, instance, list(range(num_layers)))
    m.at = pyo.Var(m.L, m.E, m.P, domain=pyo.Binary)
    m.eq11_every_expert_once = pyo.Constraint(m.L, m.E, rule=every_expert_once)
    m.eq12_equally_many = pyo.Constraint(m.L, m.P, rule=equally_many)
    m.eq13_ranks_in_order = pyo.Constraint(m.L, m.E, m.P, rule=ranks_in_order)


def group_demand(m: Any, b: int, j: int, k: int, e: int) -> Any:
    """Return the cost of what a group wants from an expert, as an expression."""
    return pyo.quicksum(m.demand[i][k][e] * in_group(m, i, b, j) for i in m.I)


def every_expert_once(m: Any, k: int, e: int) -> Any:
    """(11) Every expert of a layer is on one EP rank."""
    return pyo.quicksum(m.at[k, e, q] for q in m.P) == 1


def equally_many(m: Any, k: int, q: int) -> Any:
    """(12) Every EP rank has E / P experts of a layer."""
    return pyo.quicksum(m.at[k, e, q] for e in m.E) == m.per_rank


def ranks_in_order(m: Any, k: int, e: int, q: int) -> Any:
    """(13) An expert opens a rank only when a hotter one is on the rank before."""
    if q == 0:
        return pyo.Constraint.Skip
    return m.at[k, e, q] <= pyo.quicksum(m.at[k, f, q - 1] for f in range(e))


def expert_peak(m: Any, b: int, j: int, k: int, q: int) -> Any:
    """(9) No EP rank of a group costs more in a layer than its peak: quadratic."""
    load = sum(group_demand(m, b, j, k, e) * m.at[k, e, q] for e in m.E)
    return load <= m.expert_peak[b, j, k]


def solution(instance: LayoutInstance, m: Any) -> tuple[Placement, Layout]:
    """Return placement and layout that the values of a solved model stand for."""
    rank_LE = np.zeros((len(m.L), len(m.E)), dtype=np.int64)
    for k, e, q in m.at:
        if round(m.at[k, e, q].value) == 1:
            rank_LE[k, m.expert[k][e]] = q
    placement = Placement.from_ranks(rank_LE, len(m.P))
    return placement, layout_cells.solution(instance, m)


def placed(
    instance: LayoutInstance, demand_ILE: Int64Array, placement: Placement
) -> LayoutInstance:
    """Return the layout instance under a placement, for its checker and evaluator."""
    slots = np.take_along_axis(demand_ILE, placement.expert_of_slot_LE[None], axis=2)
    shape = (*demand_ILE.shape[:2], placement.num_ep_ranks, -1)
    load_ILP: npt.NDArray[np.int32] = slots.reshape(shape).sum(axis=3, dtype=np.int32)
    return replace(instance, load_ILP=load_ILP)
