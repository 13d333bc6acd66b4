"""Placement of one layer: equally many experts per EP rank, smallest peak.

Page: docs/formulations/placement_makespan.md. Inside the model experts are numbered
by falling load. Layers are independent, so each is a model of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from rpopt.errors import InstanceError
from rpopt.placement.instance import PlacementInstance
from rpopt.plans import Placement


def build(instance: PlacementInstance, *, layer: int) -> Any:
    """Return the Pyomo model of a layer; its optimum is the smallest peak, whole.

    Raises
    ------
    InstanceError
        When there is no such layer.
    """
    if not 0 <= layer < instance.load_LE.shape[0]:
        raise InstanceError(f"layer {layer}; there are {instance.load_LE.shape[0]}")
    load_E = instance.load_LE[layer]
    order = np.argsort(-load_E, kind="stable")
    m = pyo.ConcreteModel(f"placement_makespan_{layer}")
    m.expert, m.load = order.tolist(), load_E[order].tolist()
    m.per_rank = instance.experts_per_rank
    m.E = pyo.RangeSet(0, load_E.size - 1)
    m.P = pyo.RangeSet(0, instance.num_ep_ranks - 1)
    m.EP = pyo.Set(initialize=[(e, p) for e in m.E for p in m.P if p <= e])
    m.x = pyo.Var(m.EP, domain=pyo.Binary)
    m.peak = pyo.Var(domain=pyo.NonNegativeIntegers)
    m.eq1_every_expert_once = pyo.Constraint(m.E, rule=every_expert_once)
    m.eq2_equally_many = pyo.Constraint(m.P, rule=equally_many)
    m.eq3_peak = pyo.Constraint(m.P, rule=peak_load)
    m.eq4_ranks_in_order = pyo.Constraint(m.EP, rule=ranks_in_order)
    m.eq5_mean = pyo.Constraint(expr=m.peak >= -(-sum(m.load) // len(m.P)))
    m.objective = pyo.Objective(expr=m.peak)
    return m


def every_expert_once(m: Any, e: int) -> Any:
    """(1) Every expert is on one rank; none needs a rank after its own number."""
    return pyo.quicksum(m.x[e, p] for p in m.P if (e, p) in m.EP) == 1


def equally_many(m: Any, p: int) -> Any:
    """(2) Every rank has E / P experts."""
    return pyo.quicksum(m.x[e, p] for e in m.E if (e, p) in m.EP) == m.per_rank


def peak_load(m: Any, p: int) -> Any:
    """(3) No rank receives more than the peak."""
    return pyo.quicksum(m.load[e] * m.x[e, p] for e in m.E if p <= e) <= m.peak


def ranks_in_order(m: Any, e: int, p: int) -> Any:
    """(4) An expert opens a rank only when a hotter one is on the rank before."""
    if p == 0:
        return pyo.Constraint.Skip
    return m.x[e, p] <= pyo.quicksum(m.x[f, p - 1] for f in m.E if p - 1 <= f < e)


def rank_of_expert(m: Any) -> list[int]:
    """Return the EP rank of each expert in a solved model of one layer."""
    rank_E = [0] * len(m.E)
    for e, p in m.EP:
        if round(m.x[e, p].value) == 1:
            rank_E[m.expert[e]] = p
    return rank_E


def solution(instance: PlacementInstance, models: Sequence[Any]) -> Placement:
    """Return the placement that the solved models of all layers stand for."""
    rank_LE = np.array([rank_of_expert(m) for m in models], dtype=np.int64)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks)
