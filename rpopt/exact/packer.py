"""Column generation and dives on one set of item types, with one row per type.

Axis letters: K item types, Q patterns.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

import numpy as np

from rpopt.exact.column_generation import DualBound, Relaxation, generate
from rpopt.exact.diving import Dive, dive_by_use
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.master import Master
from rpopt.exact.patterns import PatternPool
from rpopt.records import Int64Array

_NOISE = 0.3


class Packer:
    """Bounds and packings of item types; holds a solver's process until it is closed.

    Parameters
    ----------
    types
        The item types.
    cells
        A packing: the types of the items in each cell.
    deadline_s
        When to stop, on the clock of `time.monotonic`; may raise an `OutOfTimeError`.
    """

    def __init__(
        self, types: ItemTypes, cells: Iterable[Int64Array], deadline_s: float
    ) -> None:
        self.types = types
        self.deadline_s = deadline_s
        self.knapsack = Knapsack(types, deadline_s)
        self.pool = PatternPool(types.num_types)
        self.pool.add_cells(cells)
        # With a cell for each item alone every part of the demand can be covered, even
        # where a dive has used up what the other patterns need.
        self.pool.add_cells(np.arange(types.num_types)[:, None])
        self.master = Master(types, self.pool, deadline_s=deadline_s)
        self.relaxation: Relaxation | None = None
        self.num_dives = 0

    def __enter__(self) -> Self:
        """Return the packer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the solver's process."""
        self.master.__exit__(kind, error, trace)

    def bound(
        self,
        stop_at: int,
        *,
        first: DualBound | None = None,
        converge: bool = False,
    ) -> DualBound:
        """Return the bound of column generation; stop once it reaches `stop_at`."""
        self.master.restrict(self.types.demand_K, 0)
        self.relaxation = generate(
            self.master,
            self.knapsack,
            self.types.demand_K,
            num_fixed=0,
            stop_at=stop_at,
            deadline_s=self.deadline_s,
            first=first,
            converge=converge,
        )
        return self.relaxation.bound

    def dive(self, budget: int, rng: np.random.Generator) -> list[Int64Array] | None:
        """Return a packing into at most `budget` cells, or None if a dive finds none.

        The first dive follows the relaxation; later ones are perturbed at random.
        """
        dive = Dive(residual_K=self.types.demand_K, budget=budget)
        found = dive_by_use(
            self.master,
            self.knapsack,
            dive,
            deadline_s=self.deadline_s,
            rng=rng,
            first=self.relaxation.bound if self.relaxation else None,
            noise=_NOISE if self.num_dives else 0.0,
        )
        self.num_dives += 1
        return dive.cells if found else None


def pack_part(
    types: ItemTypes,
    demand_K: Int64Array,
    budget: int,
    *,
    deadline_s: float,
    rng: np.random.Generator,
    dives: int = 3,
) -> list[Int64Array] | None:
    """Return cells that hold a part of the demand, within a budget, or None."""
    if not demand_K.any():
        return []
    part, kept = types.part(demand_K)
    cells = part.first_fit(part.demand_K, budget)
    if cells is None:
        start = part.first_fit(part.demand_K, int(part.demand_K.sum()))
        assert start is not None
        with Packer(part, start, deadline_s) as packer:
            if packer.bound(budget + 1).cells <= budget:
                for _ in range(dives):
                    cells = packer.dive(budget, rng)
                    if cells is not None:
                        break
    return None if cells is None else [kept[cell] for cell in cells]
