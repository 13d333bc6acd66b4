"""Item types: equal items counted together, tokens in the coarsest unit.

The cutting-stock view of a packing instance. Which items of a type go where is decided
only when patterns are turned back into a packing.

Axis letters: I items, K item types, Q patterns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rpopt.packing.instance import PackingInstance, PackingSolution
from rpopt.records import Int64Array

_MOST_BITS = 2**33  # to be shifted in the search for the largest load


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemTypes:
    """A packing instance as item types with demands.

    Parameters
    ----------
    weight_K
        Weight of each type, int64, not increasing; see `unit_tokens`.
    samples_K
        Samples of an item of each type.
    demand_K
        Items of each type.
    type_I
        The type of each item of the instance.
    capacity
        The largest load that a cell can reach, in units.
    sample_limit
        Samples that a cell may hold; 0 when that can never be exceeded.
    unit_tokens
        Tokens per unit of weight.
    """

    weight_K: Int64Array
    samples_K: Int64Array
    demand_K: Int64Array
    type_I: Int64Array
    capacity: int
    sample_limit: int
    unit_tokens: int

    @classmethod
    def of(cls, instance: PackingInstance) -> "ItemTypes":
        """Group equal items; divide by the common divisor; lower the capacity."""
        limit = _binding_limit(instance)
        samples_I = instance.samples_I if limit else np.ones_like(instance.weight_I)
        keys_KX, type_I, demand_K = np.unique(
            np.stack([-instance.weight_I, -samples_I], axis=1),
            axis=0,
            return_inverse=True,
            return_counts=True,
        )
        weight_K = -keys_KX[:, 0]
        unit = int(np.gcd.reduce(weight_K))
        weight_K = weight_K // unit
        capacity = _largest_load(weight_K, demand_K, instance.capacity // unit)
        return cls(
            weight_K=weight_K,
            samples_K=-keys_KX[:, 1],
            demand_K=demand_K,
            type_I=type_I.reshape(-1),
            capacity=capacity,
            sample_limit=limit,
            unit_tokens=unit,
        )

    @property
    def num_types(self) -> int:
        """K."""
        return int(self.weight_K.size)

    @cached_property
    def limited_samples_K(self) -> Int64Array:
        """Samples of each type where they are limited, else 0."""
        return self.samples_K if self.sample_limit else np.zeros_like(self.samples_K)

    @cached_property
    def most_per_cell_K(self) -> Int64Array:
        """The most items of each type that one cell can hold, whatever the demand."""
        by_weight = self.capacity // self.weight_K
        if not self.sample_limit:
            return by_weight
        return np.minimum(by_weight, self.sample_limit // self.samples_K)

    def part(self, demand_K: Int64Array) -> tuple["ItemTypes", Int64Array]:
        """Return the types of a smaller demand, and their numbers here."""
        kept = np.flatnonzero(demand_K)
        part = replace(
            self,
            weight_K=self.weight_K[kept],
            samples_K=self.samples_K[kept],
            demand_K=demand_K[kept],
            type_I=np.repeat(np.arange(kept.size), demand_K[kept]),
        )
        return part, kept

    def is_cell(self, cell: Int64Array) -> bool:
        """Whether items of these types fit into one cell."""
        samples = int(self.limited_samples_K[cell].sum())
        load = int(self.weight_K[cell].sum())
        return load <= self.capacity and samples <= self.sample_limit

    def solution(self, cells: Iterable[Int64Array]) -> PackingSolution:
        """Return the packing with these cells; together they cover every item.

        Parameters
        ----------
        cells
            The types of the items in each cell, with repetition. What they hold beyond
            the demand is left out, and so are cells that end up empty.
        """
        ends_K = np.cumsum(self.demand_K)
        next_K = (ends_K - self.demand_K).tolist()
        end_K = ends_K.tolist()
        item_of_place = np.argsort(self.type_I, kind="stable")
        cell_of_place = np.full(self.type_I.size, -1)
        used = 0
        for cell in cells:
            placed = False
            for k in cell.tolist():
                if next_K[k] < end_K[k]:
                    cell_of_place[next_K[k]] = used
                    next_K[k] += 1
                    placed = True
            used += placed
        assert next_K == end_K, "the cells do not cover every item"
        cell_I = np.empty_like(cell_of_place)
        cell_I[item_of_place] = cell_of_place
        return PackingSolution(cell_I=cell_I)

    def cells(self, solution: PackingSolution) -> list[Int64Array]:
        """Return the types of the items in each cell of a packing, increasing."""
        order = np.lexsort((self.type_I, solution.cell_I))
        starts = np.cumsum(np.bincount(solution.cell_I))[:-1]
        return np.split(self.type_I[order], starts)

    def first_fit(self, demand_K: Int64Array, cells: int) -> list[Int64Array] | None:
        """Pack a demand by first fit decreasing; None when it needs more cells."""
        if cells <= 0:
            return None if demand_K.any() else []
        room = np.full(cells, self.capacity)
        places = np.full(cells, self.sample_limit)
        packed: list[list[int]] = [[] for _ in range(cells)]
        for k in np.repeat(np.arange(self.num_types), demand_K).tolist():
            fits = room >= self.weight_K[k]
            if self.sample_limit:
                fits &= places >= self.samples_K[k]
            cell = int(fits.argmax())
            if not fits[cell]:
                return None
            room[cell] -= self.weight_K[k]
            places[cell] -= self.limited_samples_K[k]
            packed[cell].append(k)
        return [np.array(cell, dtype=np.int64) for cell in packed if cell]


def _binding_limit(instance: PackingInstance) -> int:
    """Return the limit on samples, or 0 when the lightest items never exceed it."""
    limit = instance.max_samples_per_cell
    if limit is None or instance.samples_I.sum() <= limit:
        return 0
    # The most samples in a cell, relaxed: fill it with the fewest tokens per sample.
    order = np.argsort(instance.weight_I / instance.samples_I)
    load_I = np.cumsum(instance.weight_I[order])
    fitting = int(np.searchsorted(load_I, instance.capacity, side="right"))
    most = int(instance.samples_I[order][: fitting + 1].sum())
    return 0 if most <= limit else limit


def _largest_load(weight_K: Int64Array, demand_K: Int64Array, capacity: int) -> int:
    """Return the largest total of items that is at most the capacity.

    Where that is much work, the capacity itself: only a little is lost.
    """
    if capacity * weight_K.size > _MOST_BITS:
        return capacity
    mask = (1 << (capacity + 1)) - 1
    reach = 1
    for weight, demand in zip(weight_K.tolist(), demand_K.tolist(), strict=True):
        copies, bundle = min(demand, capacity // weight), 1
        while copies:
            taken = min(copies, bundle)
            reach |= reach << weight * taken & mask
            copies, bundle = copies - taken, bundle * 2
        if reach >> capacity:
            break
    return reach.bit_length() - 1
