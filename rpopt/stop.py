"""Stop criteria: objects that a search asks after every sweep; and deadlines."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rpopt.errors import InstanceError


class OutOfTimeError(Exception):
    """A deadline passed inside a computation; whoever set it keeps what is known."""


def require_time(deadline_s: float) -> None:
    """Raise an `OutOfTimeError` from a deadline on, on the clock `time.monotonic`."""
    if time.monotonic() >= deadline_s:
        raise OutOfTimeError


class StopCriterion(Protocol):
    """Says when a search ends. `reset` is called once, when the search starts."""

    def reset(self) -> None:
        """Forget everything; the search starts now."""
        ...

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        """Return whether to stop after `sweeps` sweeps with cost `best` >= `bound`."""
        ...


@dataclass(slots=True)
class MaxRuntime:
    """Stop after a number of seconds."""

    seconds_s: float
    _start_s: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the limit and start the clock."""
        if not self.seconds_s >= 0:
            raise InstanceError(f"a time limit of {self.seconds_s} s; it must be >= 0")
        self.reset()

    def reset(self) -> None:
        """Start the clock."""
        self._start_s = time.monotonic()

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        """Return whether the time is over."""
        return time.monotonic() - self._start_s >= self.seconds_s


@dataclass(frozen=True, slots=True)
class MaxSweeps:
    """Stop after a number of sweeps: the deterministic limit."""

    sweeps: int

    def __post_init__(self) -> None:
        """Check the limit."""
        if self.sweeps < 0:
            raise InstanceError(f"a limit of {self.sweeps} sweeps; it must be >= 0")

    def reset(self) -> None:
        """Nothing to forget."""

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        """Return whether the sweeps are used up."""
        return sweeps >= self.sweeps


@dataclass(frozen=True, slots=True)
class FirstOf:
    """Stop as soon as one of several criteria says so."""

    criteria: Sequence[StopCriterion]

    def __post_init__(self) -> None:
        """Check that there is one at all."""
        if not self.criteria:
            raise InstanceError("no stop criterion; a search would never end")

    def reset(self) -> None:
        """Reset every criterion."""
        for criterion in self.criteria:
            criterion.reset()

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        """Return whether any criterion stops."""
        return any(c(sweeps=sweeps, best=best, bound=bound) for c in self.criteria)
