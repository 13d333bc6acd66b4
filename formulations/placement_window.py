"""Placement of one layer for given groups: smallest weighted sum of their peaks.

Page: docs/formulations/placement_window.md. Inside the model experts are numbered by
falling weighted demand. Layers are independent, so each is a model of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from formulations.placement_makespan import (
    equally_many,
    every_expert_once,
    rank_of_expert,
    ranks_in_order,
)
from rpopt.errors import InstanceError
from rpopt.placement.instance_window import WindowPlacementInstance
from rpopt.plans import Placement
from rpopt.records import Int64Array


def build(
    instance: WindowPlacementInstance,
    *,
    layer: int,
    home_E: Int64Array | None = None,
    max_moves: int | None = None,
) -> Any:
    """Return the Pyomo model of a layer; its optimum is a whole number.

    Parameters
    ----------
    instance
        Groups, their demand and weights.
    layer
        Which layer.
    home_E, max_moves
        EP rank of each expert now, and how many may leave it; both or none.

    Raises
    ------
    InstanceError
        When there is no such layer, or moves are limited without a home.
    """
    num_layers, num_experts = instance.demand_GLE.shape[1:]
    if not 0 <= layer < num_layers:
        raise InstanceError(f"layer {layer}; there are {num_layers}")
    if (home_E is None) != (max_moves is None):
        raise InstanceError("home_E and max_moves go together; give both or none")
    demand_GE = instance.weighted_GLE[:, layer]
    order = np.argsort(-demand_GE.sum(axis=0), kind="stable")
    m = pyo.ConcreteModel(f"placement_window_{layer}")
    m.expert, m.demand = order.tolist(), demand_GE[:, order].tolist()
    m.per_rank = num_experts // instance.num_ep_ranks
    m.E = pyo.RangeSet(0, num_experts - 1)
    m.P = pyo.RangeSet(0, instance.num_ep_ranks - 1)
    m.G = pyo.RangeSet(0, instance.num_groups - 1)
    free = home_E is None  # then ranks can be renumbered at will
    m.EP = pyo.Set(initialize=[(e, p) for e in m.E for p in m.P if p <= e or not free])
    m.x = pyo.Var(m.EP, domain=pyo.Binary)
    m.peak = pyo.Var(m.G, domain=pyo.NonNegativeReals)
    m.eq1_every_expert_once = pyo.Constraint(m.E, rule=every_expert_once)
    m.eq2_equally_many = pyo.Constraint(m.P, rule=equally_many)
    m.eq3_group_peak = pyo.Constraint(m.G, m.P, rule=group_peak)
    m.eq4_group_mean = pyo.Constraint(m.G, rule=group_mean)
    if free:
        m.eq5_ranks_in_order = pyo.Constraint(m.EP, rule=ranks_in_order)
    else:
        m.home, m.most = np.asarray(home_E)[order].tolist(), max_moves
        m.eq6_moves = pyo.Constraint(rule=few_moves)
    m.objective = pyo.Objective(expr=pyo.quicksum(m.peak[g] for g in m.G))
    return m


def group_peak(m: Any, g: int, p: int) -> Any:
    """(3) No rank receives more of a group than the group's peak."""
    load = pyo.quicksum(m.demand[g][e] * m.x[e, p] for e in m.E if (e, p) in m.EP)
    return load <= m.peak[g]


def group_mean(m: Any, g: int) -> Any:
    """(4) A peak is at least the mean, rounded up, and the hottest expert."""
    demand = m.demand[g]
    return m.peak[g] >= max(-(-sum(demand) // len(m.P)), max(demand))


def few_moves(m: Any) -> Any:
    """(6) Few experts leave their EP rank."""
    stay = pyo.quicksum(m.x[e, m.home[e]] for e in m.E)
    return stay >= len(m.E) - m.most


def solution(instance: WindowPlacementInstance, models: Sequence[Any]) -> Placement:
    """Return the placement that the solved models of all layers stand for."""
    rank_LE = np.array([rank_of_expert(m) for m in models], dtype=np.int64)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks)
