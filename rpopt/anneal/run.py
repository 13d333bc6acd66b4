"""A run in progress: what is done, what is left, and the best layout so far."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rpopt.anneal.schedule import Limits
from rpopt.records import Int64Array, IntArray
from rpopt.stop import StopCriterion

_PIECE_S = 0.025  # of a stage, between two looks at the clock ...
_PIECE_SHARE = 50  # ... and one part in so many of the time limit
_WARM_UP_S = 0.002  # long enough to know the speed
_MEMORY = 0.9  # of the measured speed, from piece to piece
_OPEN_SWEEPS = 1000  # planned for where the stop criterion names no limit

ByteArray = npt.NDArray[np.uint8]


class LostProcessError(Exception):
    """A process of a distributed run died, stalled or came late."""


class Engine(Protocol):
    """A population that can be advanced: see `CompiledEngine` and `TorchEngine`."""

    name: str

    def run(self, temperature: int, first: int, count: int) -> None:
        """Attempt moves `first` to `first + count` in every replica."""

    def energies(self) -> Int64Array:
        """Return the energy of each replica."""

    def copy(self, parent_B: Sequence[int]) -> None:
        """Replace each replica by its parent; survivors stay where they are."""

    def slowest(self) -> Int64Array:
        """Return J of each replica, in ticks."""

    def cells(self, replica: int) -> IntArray:
        """Return the cells of one replica [I]."""

    def accepted(self) -> Int64Array:
        """Return how many moves of each kind were accepted so far, [M]."""


class LocalEngine(Engine, Protocol):
    """An engine of this process alone, whose replicas can travel as bytes."""

    num_items: int
    replica_bytes: int

    def pack(self, replica: int) -> ByteArray:
        """Return one replica's state."""

    def unpack(self, replica: int, data: ByteArray) -> None:
        """Replace one replica's state."""

    def close(self) -> None:
        """Let go of threads and memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """The best J (in ticks) known after some seconds and whole sweeps."""

    seconds_s: float
    sweeps: int
    best_ticks: int


@dataclass(slots=True, kw_only=True)
class Run:
    """What is done and what is left of a run, in moves per replica; the best so far.

    Parameters
    ----------
    stop
        The criterion; asked after every sweep, or every few milliseconds where it
        limits the time.
    moves_per_sweep
        I.
    population
        B.
    bound_ticks
        A lower bound on J; meeting it ends the run.
    best_ticks, best_cell_I
        The lowest J so far, and its cells.
    began_s
        When the limits began to count, by the clock; None for now.
    clock
        Seconds from any start; read after every piece, the same for all processes.
    progress
        Called with every new history point.
    """

    stop: StopCriterion
    moves_per_sweep: int
    population: int
    bound_ticks: int
    best_ticks: int
    best_cell_I: IntArray
    began_s: float | None = None
    clock: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    progress: Callable[[HistoryPoint], None] | None = None
    history: list[HistoryPoint] = field(default_factory=list)
    moves: int = 0
    termination: str = ""
    _limits: Limits = field(init=False)
    _measured: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _last_s: float = field(default=0.0, init=False)
    _began_s: float = field(init=False)
    _now_s: float = field(init=False)
    _open_until: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Read the limits and note the start."""
        self._limits = Limits.of(self.stop)
        self._now_s = self.clock()
        self._began_s = self._now_s if self.began_s is None else self.began_s
        self._record(self.best_ticks)

    @property
    def sweeps(self) -> int:
        """Whole sweeps done."""
        return self.moves // self.moves_per_sweep

    @property
    def seconds_s(self) -> float:
        """Seconds from the start to the last look at the clock."""
        return self._now_s - self._began_s

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return bool(self.termination)

    def follow(self, stop: StopCriterion, clock: Callable[[], float]) -> None:
        """Start anew under a criterion and a clock that several processes share."""
        self.stop, self.clock = stop, clock
        stop.reset()
        self._began_s = self._now_s = clock()

    def left(self) -> int:
        """Return how many moves per replica are left, as far as one can tell."""
        left = []
        if self._limits.sweeps is not None:
            left.append(self._limits.sweeps * self.moves_per_sweep - self.moves)
        if self._limits.seconds_s is not None and self._moves_per_s:
            seconds = self._limits.seconds_s - self.seconds_s
            left.append(int(seconds * self._moves_per_s))
        if not left:
            left.append(self._open_until - self.moves)
        return max(0, min(left))

    def plan_round(self) -> bool:
        """Return whether enough is left to heat up and cool down (once more)."""
        if self._limits == Limits(seconds_s=None, sweeps=None):
            more = max(_OPEN_SWEEPS * self.moves_per_sweep, self.moves)
            self._open_until = self.moves + more
        return self.moves == 0 or 8 * self.left() >= self.moves

    def check(self) -> None:
        """Ask whether the run ends here."""
        if self.best_ticks <= self.bound_ticks:
            self.termination = "bound met"
        elif self.stop(
            sweeps=self.sweeps, best=self.best_ticks, bound=self.bound_ticks
        ):
            self.termination = self._which_limit()

    def spend(self, engine: Engine, temperature: int, moves: int) -> None:
        """Run moves at one temperature, unless the run ends before."""
        until = self.moves + moves
        while self.moves < until and not self.over:
            piece = min(until - self.moves, self._piece())
            engine.run(temperature, self.moves, piece)
            self.moves += piece
            self._measure(piece)
            self.keep_best(engine)
            self.check()

    def keep_best(self, engine: Engine) -> None:
        """Keep the best replica if it is better than all before."""
        slowest_B = engine.slowest()
        if slowest_B.min(initial=self.best_ticks) < self.best_ticks:
            self.best_cell_I = engine.cells(int(slowest_B.argmin()))
            self._record(int(slowest_B.min()))

    def warm_up(self, engine: Engine, temperature: int) -> None:
        """Run a few moves where the plan needs to know the engine's speed."""
        moves, self._measured = 1, (0.0, 0.0)
        while self._limits.seconds_s is not None and not self.over and moves:
            self._measured, self._last_s = (0.0, 0.0), self._look()
            self.spend(engine, temperature, moves)
            moves = 4 * moves if self._measured[1] < _WARM_UP_S else 0

    def _measure(self, moves: int) -> None:
        """Average the speed over the last pieces, with what came between them."""
        known_moves, known_s = self._measured
        now_s = self._look()
        self._measured = (
            moves + _MEMORY * known_moves,
            now_s - self._last_s + _MEMORY * known_s,
        )
        self._last_s = now_s

    def _look(self) -> float:
        """Look at the clock; return the seconds since the start."""
        self._now_s = self.clock()
        return self.seconds_s

    @property
    def _moves_per_s(self) -> float:
        moves, seconds_s = self._measured
        return moves / max(seconds_s, 1e-9)

    def _piece(self) -> int:
        if self._limits.seconds_s is None:
            return self.moves_per_sweep - self.moves % self.moves_per_sweep
        if not self._moves_per_s:
            return self.moves_per_sweep
        seconds = min(_PIECE_S, self._limits.seconds_s / _PIECE_SHARE)
        return max(1, int(seconds * self._moves_per_s))

    def _record(self, best_ticks: int) -> None:
        self.best_ticks = best_ticks
        point = HistoryPoint(
            seconds_s=self.seconds_s, sweeps=self.sweeps, best_ticks=best_ticks
        )
        self.history.append(point)
        if self.progress is not None:
            self.progress(point)

    def _which_limit(self) -> str:
        if self._limits.sweeps is not None and self.sweeps >= self._limits.sweeps:
            return "sweep limit"
        seconds = self._limits.seconds_s
        return (
            "time limit"
            if seconds is not None and self._look() >= seconds
            else "stop criterion"
        )
