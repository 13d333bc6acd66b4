"""The packing problem: an instance, its solutions, the evaluator and the checker.

Axis letters: I items.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rpopt.checks import Violation
from rpopt.errors import InstanceError
from rpopt.items import Items
from rpopt.records import Int64Array, Record, freeze, int_array, positive_int
from rpopt.rules import PackingRules
from rpopt.topology import Topology

MAX_TOTAL = 2**48  # leaves room for the factors that bounds multiply totals with


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingInstance(Record):
    """Pack items into the fewest cells of equal capacity.

    Parameters
    ----------
    weight_I
        Tokens of each item, in [1, capacity].
    capacity
        Tokens per cell.
    num_samples_I
        Samples of each item; left out, 1 each.
    max_samples_per_cell
        None for no limit.
    num_ranks, row_multiple
        Rows are counted in multiples of `row_multiple`, each of `num_ranks` cells.
    """

    SCHEMA: ClassVar[str] = "rpopt.packing/1"

    weight_I: Int64Array
    capacity: int
    num_samples_I: Int64Array | None = None
    max_samples_per_cell: int | None = None
    num_ranks: int = 1
    row_multiple: int = 1

    def __post_init__(self) -> None:
        """Check sizes and ranges."""
        weight_I = int_array(self.weight_I, name="weight_I", ndim=1, minimum=1)
        capacity = positive_int(self.capacity, name="capacity")
        if weight_I.size == 0:
            raise InstanceError("a packing instance needs at least one item")
        if weight_I.max() > capacity:
            i = int(weight_I.argmax())
            raise InstanceError(
                f"item {i} weighs {weight_I[i]}; the capacity is {capacity}"
            )
        count = (
            np.ones_like(weight_I) if self.num_samples_I is None else self.num_samples_I
        )
        count_I = int_array(count, name="num_samples_I", ndim=1, minimum=1)
        if count_I.size != weight_I.size:
            raise InstanceError(
                f"num_samples_I has {count_I.size} entries for {weight_I.size} items"
            )
        limit = self.max_samples_per_cell
        if limit is not None and count_I.max() > positive_int(
            limit, name="max_samples"
        ):
            raise InstanceError(
                f"an item holds {int(count_I.max())} samples; max_samples_per_cell ="
                f" {limit}"
            )
        largest = {
            "capacity": capacity,
            "max_samples_per_cell": limit or 0,
            "the sum of weight_I": weight_I.size * int(weight_I.max()),
            "the sum of num_samples_I": count_I.size * int(count_I.max()),
        }
        for name, value in largest.items():
            if value > MAX_TOTAL:
                raise InstanceError(
                    f"{name} may reach {value}; up to {MAX_TOTAL} is supported"
                )
        freeze(self, "weight_I", weight_I)
        freeze(self, "num_samples_I", count_I)
        freeze(self, "num_ranks", positive_int(self.num_ranks, name="num_ranks"))
        freeze(
            self, "row_multiple", positive_int(self.row_multiple, name="row_multiple")
        )

    @classmethod
    def from_items(
        cls, items: Items, rules: PackingRules, topology: Topology
    ) -> "PackingInstance":
        """Return the packing instance of a window's items."""
        return cls(
            weight_I=items.weight_tokens_I,
            capacity=rules.token_cap,
            num_samples_I=items.num_samples_I,
            max_samples_per_cell=rules.max_samples_per_cell,
            num_ranks=topology.dp,
            row_multiple=rules.row_multiple,
        )

    @property
    def num_items(self) -> int:
        """I."""
        return int(self.weight_I.size)

    @property
    def samples_I(self) -> Int64Array:
        """Samples of each item, always present."""
        assert self.num_samples_I is not None
        return self.num_samples_I

    def rows_for(self, num_cells: int) -> int:
        """Return the smallest allowed number of rows with at least this many cells."""
        per_step = self.num_ranks * self.row_multiple
        return -(-num_cells // per_step) * self.row_multiple


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingSolution(Record):
    """The cell of each item; cells are numbered from 0 without gaps."""

    SCHEMA: ClassVar[str] = "rpopt.packing-solution/1"

    cell_I: Int64Array

    def __post_init__(self) -> None:
        """Store the array read-only."""
        freeze(self, "cell_I", int_array(self.cell_I, name="cell_I", ndim=1, minimum=0))

    @property
    def num_cells(self) -> int:
        """Number of cells used."""
        return int(self.cell_I.max()) + 1 if self.cell_I.size else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCost:
    """What a packing costs.

    Parameters
    ----------
    num_cells
        Cells used: the objective.
    num_rows
        Smallest allowed number of rows with that many cells.
    fill
        Share of the used cells' capacity that is filled, in [0, 1].
    """

    num_cells: int
    num_rows: int
    fill: float


def evaluate(instance: PackingInstance, solution: PackingSolution) -> PackingCost:
    """Return the exact cost of a packing."""
    cells = solution.num_cells
    return PackingCost(
        num_cells=cells,
        num_rows=instance.rows_for(cells),
        fill=float(instance.weight_I.sum()) / (cells * instance.capacity),
    )


def check(instance: PackingInstance, solution: PackingSolution) -> list[Violation]:
    """Return every broken constraint; an empty list means feasible."""
    if solution.cell_I.size != instance.num_items:
        message = f"{solution.cell_I.size} items packed, {instance.num_items} exist"
        return [Violation(constraint="every item once", message=message)]
    found = []
    cells = solution.num_cells
    if cells > instance.num_items:
        message = f"{cells} cells for {instance.num_items} items"
        return [Violation(constraint="empty cell", message=message)]
    load = np.zeros(cells, dtype=np.int64)
    count = np.zeros(cells, dtype=np.int64)
    np.add.at(load, solution.cell_I, instance.weight_I)
    np.add.at(count, solution.cell_I, instance.samples_I)
    for cell in np.flatnonzero(load > instance.capacity):
        message = f"cell {cell} holds {load[cell]} tokens, cap {instance.capacity}"
        found.append(Violation(constraint="token cap", message=message))
    for cell in np.flatnonzero(count == 0):
        found.append(
            Violation(constraint="empty cell", message=f"cell {cell} is empty")
        )
    limit = instance.max_samples_per_cell
    if limit is not None:
        for cell in np.flatnonzero(count > limit):
            message = f"cell {cell} holds {count[cell]} samples, at most {limit}"
            found.append(Violation(constraint="samples per cell", message=message))
    return found
