"""The state of a search for a packing: the best one, the bounds, the time.

Axis letters: I items, K item types.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.checks import require_feasible
from rpopt.errors import SolverError
from rpopt.exact.column_generation import DualBound
from rpopt.exact.item_types import ItemTypes
from rpopt.packing.instance import PackingInstance, PackingSolution, check
from rpopt.packing.knapsack import dual_weights
from rpopt.stop import OutOfTimeError

Report = Callable[[str, int, int], None]
_GRACE_S = 0.5  # for checking a bound that was found just in time


@dataclass(slots=True)
class Search:
    """What a call of `solve_packing` knows so far.

    Every packing is checked and every dual bound recomputed before it is taken over.
    """

    instance: PackingInstance
    target: int | None
    deadline_s: float  # on the clock of `time.monotonic`
    progress: Report | None
    rng: np.random.Generator
    best: PackingSolution | None = None
    bounds: list[Bound] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def lower(self) -> int:
        """The best bound."""
        return max((b.value for b in self.bounds), default=1)

    @property
    def upper(self) -> int:
        """Cells of the best packing."""
        assert self.best is not None
        return self.best.num_cells

    @property
    def goal(self) -> int:
        """The number of cells at which the search may stop."""
        return max(self.lower, self.target or 0)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do, or no time to do it."""
        refuted = self.target is not None and self.lower > self.target
        return self.upper <= self.goal or refuted or time.monotonic() >= self.deadline_s

    def accept(self, method: str, solution: PackingSolution) -> None:
        """Take over a packing if it is better."""
        if self.best is None or solution.num_cells < self.upper:
            require_feasible(check(self.instance, solution), f"the packing of {method}")
            self.best = solution
            self._report(method)

    def prove(self, bound: Bound) -> None:
        """Take over a bound.

        Raises
        ------
        SolverError
            When it exceeds the best packing, which was checked.
        """
        if self.best is not None and bound.value > self.upper:
            raise SolverError(
                f"the {bound.kind} bound {bound.name!r} claims {bound.value} cells, but"
                f" a checked packing has {self.upper}; please report this instance"
            )
        better = bound.value > self.lower
        self.bounds.append(bound)
        if better:
            self._report(bound.name)

    def prove_dual(self, types: ItemTypes, bound: DualBound) -> None:
        """Take over a dual bound, if it is better, with evidence that stands alone."""
        if bound.cells > self.lower:
            value_I, late_s = bound.value_K[types.type_I], self.deadline_s + _GRACE_S
            with contextlib.suppress(OutOfTimeError):
                self.prove(dual_weights(self.instance, value_I, deadline_s=late_s))

    def _report(self, method: str) -> None:
        if self.progress is not None and self.best is not None:
            self.progress(method, self.lower, self.upper)
