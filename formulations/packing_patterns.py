"""Packing as a cover of the items by given patterns: the Gilmore-Gomory master.

Page: docs/formulations/packing_patterns.md. With all patterns of an instance the
optimum is the fewest cells; with some of them it is the best packing they allow, and
its relaxation is the restricted master of column generation.

Source: Gilmore and Gomory, Operations Research 9 (1961) and 11 (1963).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyomo.environ as pyo

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.packing.instance import PackingInstance, PackingSolution


def build(instance: PackingInstance, *, patterns: Sequence[Sequence[int]]) -> Any:
    """Return the Pyomo model over some patterns.

    Parameters
    ----------
    instance
        The packing instance.
    patterns
        Item sets that fit one cell each. Subsets of a pattern are understood.

    Raises
    ------
    InstanceError
        When a pattern does not fit a cell.
    InfeasibleError
        When an item is in no pattern.
    """
    for p, pattern in enumerate(patterns):
        _require_fitting(instance, p, pattern)
    m = pyo.ConcreteModel("packing_patterns")
    m.patterns = [tuple(pattern) for pattern in patterns]
    m.patterns_of = [[] for _ in range(instance.num_items)]
    for p, pattern in enumerate(m.patterns):
        for i in pattern:
            m.patterns_of[i].append(p)
    if not all(m.patterns_of):
        missing = [i for i, found in enumerate(m.patterns_of) if not found]
        raise InfeasibleError(f"items {missing[:5]} are in no pattern; add singletons")
    m.I = pyo.RangeSet(0, instance.num_items - 1)
    m.P = pyo.RangeSet(0, len(m.patterns) - 1)
    m.use = pyo.Var(m.P, domain=pyo.Binary)
    m.eq1_every_item_covered = pyo.Constraint(m.I, rule=every_item_covered)
    m.num_cells = pyo.Objective(expr=pyo.quicksum(m.use[p] for p in m.P))
    return m


def _require_fitting(instance: PackingInstance, p: int, pattern: Sequence[int]) -> None:
    items = list(pattern)
    if not items or len(set(items)) < len(items):
        raise InstanceError(f"pattern {p} = {items} is empty or repeats an item")
    if min(items) < 0 or max(items) >= instance.num_items:
        raise InstanceError(f"pattern {p} = {items}: items are 0 to I - 1")
    tokens = int(instance.weight_I[items].sum())
    samples = int(instance.samples_I[items].sum())
    limit = instance.max_samples_per_cell
    if tokens > instance.capacity or (limit is not None and samples > limit):
        raise InstanceError(
            f"pattern {p} holds {tokens} tokens and {samples} samples; a cell holds"
            f" {instance.capacity} and {limit}"
        )


def every_item_covered(m: Any, i: int) -> Any:
    """(1) Every item is in a used pattern; a second one can leave it out."""
    return pyo.quicksum(m.use[p] for p in m.patterns_of[i]) >= 1


def solution(instance: PackingInstance, m: Any) -> PackingSolution:
    """Return the packing that the values of a solved model stand for."""
    cell_I = np.full(instance.num_items, -1, dtype=np.int64)
    for p in m.P:
        if round(m.use[p].value) == 1:
            for i in m.patterns[p]:
                if cell_I[i] < 0:
                    cell_I[i] = p
    _, dense_I = np.unique(cell_I, return_inverse=True)
    return PackingSolution(cell_I=dense_I)
