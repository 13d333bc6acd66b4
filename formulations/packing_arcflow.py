"""Packing as a flow over partial fillings of a cell: one unit of flow is one cell.

Page: docs/formulations/packing_arcflow.md. The relaxation equals that of all patterns,
but the graph grows with the capacity, so its size is predicted first.

Sources: Valerio de Carvalho, Annals of Operations Research 86 (1999); the graph is
built type by type as by Brandao and Pedroso, Computers & Operations Research 69 (2016).

A node (t, s) is a cell with t tokens and s samples; samples are 0 where they are not
limited. Axis letters: I items, K item types.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import networkx as nx
import numpy as np
import pyomo.environ as pyo

from rpopt.errors import InstanceError
from rpopt.packing.instance import PackingInstance, PackingSolution

MOST_ARCS = 30_000
SOURCE, SINK = (0, 0), (-1, -1)
_LOSS = -1  # the type of an arc that leaves the rest of a cell empty
Node = tuple[int, int]
Arc = tuple[Node, Node, int]
"""From a node to a node by adding an item of a type."""
ItemType = tuple[int, int]
"""Weight and samples; samples are 0 where they are not limited."""


def build(instance: PackingInstance, *, most_arcs: int = MOST_ARCS) -> Any:
    """Return the Pyomo model; its optimum is the fewest cells.

    Raises
    ------
    InstanceError
        When the graph would have more than `most_arcs` arcs.
    """
    if predict_arcs(instance, most_arcs=most_arcs) > most_arcs:
        raise InstanceError(
            f"the arc-flow graph needs more than {most_arcs} arcs for"
            f" {len(item_types(instance))} item types and a capacity of"
            f" {instance.capacity}; use column generation, a larger pad_multiple, or"
            " raise most_arcs"
        )
    m = pyo.ConcreteModel("packing_arcflow")
    m.types = list(item_types(instance).items())
    m.graph = graph(instance)
    m.arcs = list(m.graph.edges(keys=True))
    m.nodes = [node for node in m.graph if node != SINK]
    m.arcs_of = _arcs_by(m.arcs)
    m.K = pyo.RangeSet(0, len(m.types) - 1)
    m.V = pyo.RangeSet(0, len(m.nodes) - 1)
    m.A = pyo.RangeSet(0, len(m.arcs) - 1)
    m.flow = pyo.Var(m.A, domain=pyo.NonNegativeIntegers)
    m.cells = pyo.Var(domain=pyo.NonNegativeIntegers)
    m.eq1_every_item_once = pyo.Constraint(m.K, rule=every_item_once)
    m.eq2_conservation = pyo.Constraint(m.V, rule=conservation)
    m.num_cells = pyo.Objective(expr=m.cells)
    return m


def item_types(instance: PackingInstance) -> Counter[ItemType]:
    """Return the item types, heaviest first, and how many items each has."""
    unlimited = instance.max_samples_per_cell is None
    samples = [0] * instance.num_items if unlimited else instance.samples_I.tolist()
    pairs = zip(instance.weight_I.tolist(), samples, strict=True)
    return Counter(sorted(pairs, reverse=True))


def item_arcs(instance: PackingInstance) -> Iterator[Arc]:
    """Yield the arcs that add an item.

    A cell is filled heaviest type first, so a type starts only where heavier ones end.
    """
    limit = instance.max_samples_per_cell or 0
    reached = {SOURCE}
    for k, ((weight, samples), count) in enumerate(item_types(instance).items()):
        added: set[Node] = set()
        ends = reached
        for _ in range(count):
            steps = [
                ((t, s), (t + weight, s + samples))
                for t, s in sorted(ends)
                if t + weight <= instance.capacity and s + samples <= limit
            ]
            yield from ((*step, k) for step in steps)
            # Where heavier types or fewer copies got to, all copies are still left.
            ends = {end for _, end in steps} - reached - added
            added |= ends
            if not ends:
                break
        reached |= added


def predict_arcs(instance: PackingInstance, *, most_arcs: int = MOST_ARCS) -> int:
    """Return the number of arcs of the graph, or `most_arcs` + 1 if there are more.

    Counting stops there, so the answer is cheap for any instance.
    """
    ends: set[Node] = set()
    for number, (_, end, _) in enumerate(item_arcs(instance), start=1):
        ends.add(end)
        if number + len(ends) > most_arcs:
            return most_arcs + 1
    return number + len(ends)


def graph(instance: PackingInstance) -> "nx.MultiDiGraph[Node]":
    """Return the graph: arcs that add an item, and one from each node to the sink."""
    network: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
    network.add_node(SOURCE)
    for begin, end, k in item_arcs(instance):
        network.add_edge(begin, end, key=k)
    for node in [node for node in network if node != SOURCE]:
        network.add_edge(node, SINK, key=_LOSS)
    return network


def _arcs_by(arcs: list[Arc]) -> dict[Any, list[int]]:
    """Return arc numbers by type, by ("from", node) and by ("to", node)."""
    found: dict[Any, list[int]] = {}
    for a, (begin, end, k) in enumerate(arcs):
        for key in (k, ("from", begin), ("to", end)):
            found.setdefault(key, []).append(a)
    return found


def every_item_once(m: Any, k: int) -> Any:
    """(1) As many units of flow add an item of a type as there are items."""
    return pyo.quicksum(m.flow[a] for a in m.arcs_of[k]) == m.types[k][1]


def conservation(m: Any, v: int) -> Any:
    """(2) What enters a node leaves it; the source sends out one unit per cell."""
    node = m.nodes[v]
    out = pyo.quicksum(m.flow[a] for a in m.arcs_of[("from", node)])
    if node == SOURCE:
        return out == m.cells
    return out == pyo.quicksum(m.flow[a] for a in m.arcs_of[("to", node)])


def solution(instance: PackingInstance, m: Any) -> PackingSolution:
    """Return the packing that the values of a solved model stand for: its paths."""
    left = [round(m.flow[a].value) for a in m.A]
    unlimited = instance.max_samples_per_cell is None
    items: dict[ItemType, list[int]] = {kind: [] for kind, _ in m.types}
    for i, weight in enumerate(instance.weight_I.tolist()):
        samples = 0 if unlimited else int(instance.samples_I[i])
        items[weight, samples].append(i)
    cell_I = np.zeros(instance.num_items, dtype=np.int64)
    for cell in range(round(m.cells.value)):
        node = SOURCE
        while node != SINK:
            a = next(a for a in m.arcs_of[("from", node)] if left[a])
            left[a] -= 1
            _, node, k = m.arcs[a]
            if k != _LOSS:
                cell_I[items[m.types[k][0]].pop()] = cell
    return PackingSolution(cell_I=cell_I)
