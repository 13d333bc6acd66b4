"""Packing as a flow, and which arcs no good packing can use.

A cell is a path over token positions: an arc (type, position) puts an item there, in
the order of the types. Whole values of the items bound what a path through an arc can
be worth. If z cells hold all items, their values miss z times the best value of a cell
by some slack in total, so no cell misses the best value by more: arcs whose best path
does are removed. This is reduced-cost fixing in exact integers, for one or many dual
bounds.

Sources: Valerio de Carvalho (1999) for the flow; de Lima, Iori and Miyazawa (2023),
Exact solution of network flow models with strong relaxations, for the fixing.

Axis letters: K item types, W token positions 0..capacity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rpopt.exact.column_generation import DualBound
from rpopt.exact.item_types import ItemTypes
from rpopt.highs.linear import FloatArray, LinearModel
from rpopt.records import BoolArray, Int64Array
from rpopt.stop import require_time

MAX_TABLE = 2**25
_NEVER = -(2**61)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Arcs that a packing into at most `num_cells` cells may use.

    Parameters
    ----------
    types
        The item types.
    num_cells
        The cells of the packings that are looked for.
    arc_KW
        Whether an item of a type may start at a token position.
    """

    types: ItemTypes
    num_cells: int
    arc_KW: BoolArray

    @property
    def num_arcs(self) -> int:
        """Arcs that are left."""
        return int(self.arc_KW.sum())


def full_network(types: ItemTypes, num_cells: int) -> Network:
    """Return the network with every arc that ends within the capacity."""
    end_KW = types.weight_K[:, None] + np.arange(types.capacity + 1)
    arc_KW = end_KW <= types.capacity
    return Network(types=types, num_cells=num_cells, arc_KW=arc_KW)


def slack(bound: DualBound, num_cells: int) -> int:
    """Return by how much the cells of a packing can miss the best value, in total."""
    return num_cells * bound.best - bound.total


def fix_arcs(
    network: Network, bounds: Sequence[DualBound], *, deadline_s: float = math.inf
) -> Network:
    """Remove arcs by every bound in turn until none removes any more.

    From the deadline on (`time.monotonic`) it raises an `OutOfTimeError`.
    """
    arcs = -1
    while network.num_arcs != arcs:
        arcs = network.num_arcs
        for bound in bounds:
            network = _fix_once(network, bound, deadline_s)
    return network


def _fix_once(network: Network, bound: DualBound, deadline_s: float) -> Network:
    arrive_KW = _forward(network, bound.value_K, deadline_s)
    leave_KW = _backward(network, bound.value_K, deadline_s)
    worst = bound.best - slack(bound, network.num_cells)
    arc_KW = np.zeros_like(network.arc_KW)
    for k, weight in enumerate(network.types.weight_K):
        through = arrive_KW[k, :-weight] + bound.value_K[k] + leave_KW[k, weight:]
        arc_KW[k, :-weight] = network.arc_KW[k, :-weight] & (through >= worst)
    return Network(types=network.types, num_cells=network.num_cells, arc_KW=arc_KW)


def _forward(network: Network, value_K: Int64Array, deadline_s: float) -> Int64Array:
    """Return the best value with which an item of a type can start at a position."""
    types = network.types
    arrive_KW = np.empty(network.arc_KW.shape, dtype=np.int64)
    done_W = np.full(types.capacity + 1, _NEVER)
    done_W[0] = 0
    for k, weight in enumerate(types.weight_K):
        require_time(deadline_s)
        copies_W, best_W = done_W, done_W
        for _ in range(_copies(types, k)):
            arrive_KW[k] = best_W
            moved_W = np.full_like(done_W, _NEVER)
            usable = network.arc_KW[k, :-weight] & (copies_W[:-weight] >= 0)
            moved_W[weight:][usable] = copies_W[:-weight][usable] + value_K[k]
            copies_W, best_W = moved_W, np.maximum(best_W, moved_W)
        done_W = best_W
    return arrive_KW


def _backward(network: Network, value_K: Int64Array, deadline_s: float) -> Int64Array:
    """Return the best value that can follow an item of a type that ends at a place."""
    types = network.types
    leave_KW = np.empty(network.arc_KW.shape, dtype=np.int64)
    rest_W = np.zeros(types.capacity + 1, dtype=np.int64)
    for k in range(types.num_types - 1, -1, -1):
        require_time(deadline_s)
        weight = types.weight_K[k]
        copies_W, best_W = rest_W, rest_W
        for _ in range(_copies(types, k)):
            leave_KW[k] = best_W
            moved_W = np.full_like(rest_W, _NEVER)
            usable = network.arc_KW[k, :-weight] & (copies_W[weight:] >= 0)
            moved_W[:-weight][usable] = copies_W[weight:][usable] + value_K[k]
            copies_W, best_W = moved_W, np.maximum(best_W, moved_W)
        rest_W = best_W
    return leave_KW


def _copies(types: ItemTypes, k: int) -> int:
    return int(min(types.demand_K[k], types.most_per_cell_K[k]))


def flow_model(network: Network) -> LinearModel:
    """Return the feasibility problem: flow for every item from at most z cells.

    Variables: items of type k at position w, whole. Rows: every item once; no more
    items start at a position than end there; at most z start at position 0.
    """
    types = network.types
    kind_A, from_A = np.nonzero(network.arc_KW)
    to_A = from_A + types.weight_K[kind_A]
    places, row = np.unique(from_A, return_inverse=True)
    num_arcs, first = kind_A.size, types.num_types
    ends = np.searchsorted(places, to_A)
    inner = np.flatnonzero((ends < places.size) & (places[ends % places.size] == to_A))
    arcs = np.arange(num_arcs)
    upper = np.concatenate([types.demand_K, np.zeros(places.size)])
    upper[first + np.flatnonzero(places == 0)] = network.num_cells
    lower = np.concatenate([types.demand_K, np.full(places.size, -np.inf)])
    return LinearModel.from_triplets(
        rows=np.concatenate([kind_A, first + row, first + ends[inner]]),
        cols=np.concatenate([arcs, arcs, inner]),
        values=np.concatenate([np.ones(2 * num_arcs), -np.ones(inner.size)]),
        col_cost=np.zeros(num_arcs),
        col_lower=np.zeros(num_arcs),
        col_upper=types.demand_K[kind_A].astype(np.float64),
        integrality=np.ones(num_arcs, dtype=np.bool_),
        row_lower=lower,
        row_upper=upper,
        integral_objective=True,
    )


def cells_of(network: Network, flow_A: FloatArray) -> list[Int64Array]:
    """Split a whole flow into paths: the types of the items in each cell."""
    weight_K = network.types.weight_K
    kind_A, from_A = np.nonzero(network.arc_KW)
    left: dict[int, list[int]] = {}
    for kind, place, flow in zip(
        kind_A.tolist(), from_A.tolist(), np.rint(flow_A).astype(int), strict=True
    ):
        left.setdefault(place, []).extend([kind] * int(flow))
    cells = []
    while left.get(0):
        cell: list[int] = []
        place = 0
        while left.get(place):
            cell.append(left[place].pop())
            place += int(weight_K[cell[-1]])
        cells.append(np.array(cell, dtype=np.int64))
    return cells
