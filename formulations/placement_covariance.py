"""Covariance form of placement: convex MIQP, linearised, and outer approximation.

Page: docs/formulations/placement_covariance.md. HiGHS takes no mixed-integer quadratic
model, so `build_quadratic` is a statement; `build_linear` and `build_outer` reach
HiGHS.
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
from rpopt.placement.instance_covariance import CovarianceInstance
from rpopt.plans import Placement

_LARGEST = 10_000  # of the objective, roughly


def build_quadratic(instance: CovarianceInstance, *, layer: int) -> Any:
    """Return the MIQP of a layer, as a statement."""
    m = _placement(instance, layer, "placement_covariance_quadratic")
    m.objective = pyo.Objective(
        expr=pyo.quicksum(
            m.moment[e][f] * m.x[e, p] * m.x[f, p]
            for p in m.P
            for e in m.E
            for f in m.E
            if (e, p) in m.EP and (f, p) in m.EP
        )
    )
    return m


def build_linear(instance: CovarianceInstance, *, layer: int) -> Any:
    """Return the exact linearisation of a layer; its optimum is a whole number."""
    m = _placement(instance, layer, "placement_covariance_linear")
    pairs = [(e, f) for e in m.E for f in m.E if e < f and m.moment[e][f]]
    m.Pair = pyo.Set(initialize=pairs, dimen=2)
    m.both = pyo.Var(m.Pair, domain=pyo.NonNegativeReals)
    m.eq4_together = pyo.Constraint(m.Pair, m.P, rule=together)
    m.objective = pyo.Objective(
        expr=sum(m.moment[e][e] for e in m.E)
        + 2 * pyo.quicksum(m.moment[e][f] * m.both[e, f] for e, f in m.Pair)
    )
    return m


def build_outer(instance: CovarianceInstance, *, layer: int) -> Any:
    """Return the outer approximation of a layer with the cut of an even spread.

    Its objective counts `m.unit`: solvers dislike numbers far from one.
    """
    m = _placement(instance, layer, "placement_covariance_outer")
    m.unit = max(1, sum(map(sum, m.moment)) // _LARGEST)
    m.form = pyo.Var(m.P, domain=pyo.NonNegativeReals)
    m.eq5_gradient_cuts = pyo.ConstraintList()
    m.cut_at = set()
    add_cuts(m, [1 / len(m.P)] * len(m.E))
    m.objective = pyo.Objective(expr=pyo.quicksum(m.form[p] for p in m.P))
    return m


def set_start(m: Any, rank_E: Sequence[int]) -> None:
    """Set x to a placement, its ranks renumbered by their first expert."""
    number: dict[int, int] = {}
    for e in m.E:
        p = number.setdefault(int(rank_E[m.expert[e]]), len(number))
        for q in m.P:
            if (e, q) in m.EP:
                m.x[e, q].value = int(p == q)


def add_cuts(m: Any, at: Sequence[float]) -> None:
    """(5) Bound every rank's form from below by its tangent at a point, [E], once."""
    if tuple(at) in m.cut_at:
        return
    m.cut_at.add(tuple(at))
    moment = np.array(m.moment, dtype=np.float64) / m.unit
    gradient = 2 * moment @ np.array(at)
    value = float(np.array(at) @ moment @ np.array(at))
    for p in m.P:
        tangent = pyo.quicksum(
            float(gradient[e]) * m.x[e, p] for e in m.E if (e, p) in m.EP
        )
        m.eq5_gradient_cuts.add(m.form[p] >= tangent - value)


def add_cuts_at_solution(m: Any) -> int:
    """Add the tangents at the solution's ranks; return how many are new."""
    before = len(m.cut_at)
    for p in m.P:
        on = [float((e, p) in m.EP and round(m.x[e, p].value) == 1) for e in m.E]
        add_cuts(m, on)
    return len(m.cut_at) - before


def together(m: Any, e: int, f: int, p: int) -> Any:
    """(4) Two experts on one rank are together."""
    if (e, p) not in m.EP or (f, p) not in m.EP:
        return pyo.Constraint.Skip
    return m.both[e, f] >= m.x[e, p] + m.x[f, p] - 1


def _placement(instance: CovarianceInstance, layer: int, name: str) -> Any:
    num_layers, num_experts = instance.moment_LEF.shape[:2]
    if not 0 <= layer < num_layers:
        raise InstanceError(f"layer {layer}; there are {num_layers}")
    moment_EF = instance.moment_LEF[layer]
    order = np.argsort(-np.diag(moment_EF), kind="stable")
    m = pyo.ConcreteModel(f"{name}_{layer}")
    m.expert, m.moment = order.tolist(), moment_EF[np.ix_(order, order)].tolist()
    m.per_rank = num_experts // instance.num_ep_ranks
    m.E = pyo.RangeSet(0, num_experts - 1)
    m.P = pyo.RangeSet(0, instance.num_ep_ranks - 1)
    m.EP = pyo.Set(initialize=[(e, p) for e in m.E for p in m.P if p <= e])
    m.x = pyo.Var(m.EP, domain=pyo.Binary)
    m.eq1_every_expert_once = pyo.Constraint(m.E, rule=every_expert_once)
    m.eq2_equally_many = pyo.Constraint(m.P, rule=equally_many)
    m.eq3_ranks_in_order = pyo.Constraint(m.EP, rule=ranks_in_order)
    return m


def solution(instance: CovarianceInstance, models: Sequence[Any]) -> Placement:
    """Return the placement that the solved models of all layers stand for."""
    rank_LE = np.array([rank_of_expert(m) for m in models], dtype=np.int64)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks)
