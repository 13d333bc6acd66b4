"""A population spread over the processes of a torch.distributed group.

Every process runs the same loop on the same numbers: energies are gathered, so each
decides the same resampling; only states that change owner travel; the clock and the
stop criterion are the first process's. What travels are whole numbers in host memory,
over a gloo group of our own with a timeout of its own: a process that dies, stalls or
comes late is an error after that time at most, which a group of NCCL could only answer
by ending the process.

Axis letters: as in `rpopt.anneal.tables`; W processes.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist

from rpopt.anneal.run import ByteArray, Engine, LocalEngine, LostProcessError, Run
from rpopt.errors import InstanceError, MismatchError
from rpopt.records import Int64Array, IntArray
from rpopt.stop import StopCriterion

_log = logging.getLogger(__name__)
_GROUPS: WeakKeyDictionary[dist.ProcessGroup, dict[float, dist.ProcessGroup]] = (
    WeakKeyDictionary()
)


def search_together(
    search: Callable[[Engine], None],
    make: Callable[[range], LocalEngine],
    run: Run,
    *,
    group: dist.ProcessGroup,
    timeout_s: float,
    same: tuple[object, ...],
) -> None:
    """Search with the replicas of all processes of a group.

    Parameters
    ----------
    search
        Searches with an engine, for `run`.
    make
        Makes the engine of some slots of the population.
    run
        The run; when a process is lost, it ends with the best layout known here.
    group, timeout_s
        See `Team`.
    same
        What has to be equal everywhere.
    """
    local: LocalEngine | None = None
    team = None
    try:
        team = Team(group, timeout_s)
        team.require_same(*same)
        local = make(team.slots(run.population, team.rank))
        run.follow(FirstProcessStop(run.stop, team), first_process_clock(team))
        search(SpreadEngine(local, run.population, team))
    except LostProcessError as lost:
        if local is not None:
            run.keep_best(local)
        run.termination = "process lost"
        _log.warning(
            "annealing lost a process of its group after %.1f s and ends here with the"
            " best layout that this process holds: %s", run.seconds_s, lost,
        )  # fmt: skip
        if team is not None:
            team.give_up()
    finally:
        if local is not None:
            local.close()


class Team:
    """The processes of a group, numbered by their rank in it.

    Parameters
    ----------
    group
        Any group of which this process is a member, whatever its backend.
    timeout_s
        How long the others are waited for.

    Raises
    ------
    InstanceError
        For a time-out that is not positive, or a process outside the group.
    LostProcessError
        When the others do not come.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise InstanceError(f"timeout_s = {timeout_s}; it must be > 0")
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InstanceError("this process is no member of the group it was given")
        self._ranks = dist.get_process_group_ranks(group)
        # One gloo group for each, kept while theirs lives: a second group of the same
        # members made after the first is destroyed would meet at its old addresses.
        known, self._timeout_s = _GROUPS.setdefault(group, {}), timeout_s
        if timeout_s not in known:
            with _lost():
                known[timeout_s] = dist.new_group(
                    self._ranks,
                    backend="gloo",
                    timeout=timedelta(seconds=timeout_s),
                    use_local_synchronization=True,
                )
        self._known, self._group = known, known[timeout_s]

    def slots(self, population: int, rank: int) -> range:
        """Return the slots of the population that a process owns."""
        return range(
            population * rank // self.size, population * (rank + 1) // self.size
        )

    def gather(self, value_X: Int64Array) -> Int64Array:
        """Return the numbers of all processes, int64 [W, X]."""
        mine = torch.from_numpy(value_X)
        found = torch.empty((self.size, value_X.size), dtype=torch.int64)
        with _lost():
            dist.all_gather(list(found.unbind()), mine, group=self._group)
        return found.numpy()

    def first(self, value: int) -> int:
        """Return the first process's number."""
        return int(self.broadcast(np.array([value], dtype=np.int64), 0)[0])

    def broadcast(self, value_X: Int64Array, source: int) -> Int64Array:
        """Return the numbers of one process; the others give an array of that size."""
        value = torch.from_numpy(value_X)
        with _lost():
            dist.broadcast(value, self._ranks[source], group=self._group)
        return value_X

    def exchange(
        self,
        outgoing: Sequence[tuple[int, ByteArray]],
        incoming: Sequence[tuple[int, ByteArray]],
    ) -> None:
        """Send byte strings, and fill others, in the same order on both sides."""
        with _lost():
            pending: list[Any] = [
                dist.irecv(torch.from_numpy(data), self._ranks[rank], self._group)
                for rank, data in incoming
            ]
            pending += [
                dist.isend(torch.from_numpy(data), self._ranks[rank], self._group)
                for rank, data in outgoing
            ]
            for work in pending:
                work.wait()

    def require_same(self, *values: object) -> None:
        """Raise a `MismatchError` unless all processes give the same values."""
        code = hashlib.sha256(repr(values).encode()).digest()[:8]
        code_W = self.gather(np.frombuffer(code, dtype=np.int64).copy())[:, 0]
        others = np.flatnonzero(code_W != code_W[0]).tolist()
        if others:
            raise MismatchError(
                f"processes {others} of {self.size} anneal something else than process"
                " 0; give all the same instance, starts, bound, seed and engine"
            )

    def give_up(self) -> None:
        """Never use these connections again: what they carry is out of step."""
        self._known.pop(self._timeout_s, None)


@contextmanager
def _lost() -> Any:
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        raise LostProcessError(str(error).splitlines()[0]) from error


class FirstProcessStop:
    """A stop criterion that the first process alone is asked about."""

    def __init__(self, stop: StopCriterion, team: Team) -> None:
        self._stop, self._team = stop, team

    def reset(self) -> None:
        """Reset the criterion."""
        self._stop.reset()

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        """Return the first process's answer."""
        answer = self._stop(sweeps=sweeps, best=best, bound=bound)
        return bool(self._team.first(answer))


def first_process_clock(team: Team) -> Callable[[], float]:
    """Return a clock that shows everyone the first process's time."""
    return lambda: team.first(time.monotonic_ns()) / 1e9


class SpreadEngine:
    """A population of which this process advances its own slots.

    Parameters
    ----------
    local
        The engine of this process's slots.
    population
        B, over all processes.
    team
        The processes.
    """

    def __init__(self, local: LocalEngine, population: int, team: Team) -> None:
        self.name, self._local, self._team = local.name, local, team
        self._slots_W = [team.slots(population, rank) for rank in range(team.size)]
        self._owner_B = [
            rank for rank, slots in enumerate(self._slots_W) for _ in slots
        ]

    def run(self, temperature: int, first: int, count: int) -> None:
        """Attempt moves `first` to `first + count` in every replica."""
        self._local.run(temperature, first, count)

    def energies(self) -> Int64Array:
        """Return the energy of each replica of the whole population."""
        return self._gather(self._local.energies())

    def slowest(self) -> Int64Array:
        """Return J of each replica of the whole population, in ticks."""
        return self._gather(self._local.slowest())

    def cells(self, replica: int) -> IntArray:
        """Return the cells of one replica [I]."""
        owner, offset = self._place(replica)
        cell_I = np.zeros(self._local.num_items, dtype=np.int64)
        if owner == self._team.rank:
            cell_I[:] = self._local.cells(offset)
        return self._team.broadcast(cell_I, owner)

    def copy(self, parent_B: Sequence[int]) -> None:
        """Replace each replica by its parent; what changes owner travels once.

        Nothing is changed before everything has arrived.
        """
        rank, mine = self._team.rank, self._slots_W[self._team.rank]
        moves = sorted(
            {(parent, self._owner_B[child]) for child, parent in enumerate(parent_B)}
        )
        moves = [(p, target) for p, target in moves if self._owner_B[p] != target]
        outgoing = [
            (target, self._local.pack(p - mine.start))
            for p, target in moves
            if p in mine
        ]
        arrived = {
            p: np.empty(self._local.replica_bytes, dtype=np.uint8)
            for p, target in moves
            if target == rank
        }
        incoming = [(self._owner_B[p], data) for p, data in arrived.items()]
        self._team.exchange(outgoing, incoming)
        near = [p if p in mine else b for b, p in enumerate(parent_B) if b in mine]
        self._local.copy([p - mine.start for p in near])
        for slot in mine:
            if parent_B[slot] in arrived:
                self._local.unpack(slot - mine.start, arrived[parent_B[slot]])

    def accepted(self) -> Int64Array:
        """Return how many moves of each kind were accepted so far, [M]."""
        return self._team.gather(self._local.accepted()).sum(axis=0)

    def _place(self, replica: int) -> tuple[int, int]:
        owner = self._owner_B[replica]
        return owner, replica - self._slots_W[owner].start

    def _gather(self, value_B: Int64Array) -> Int64Array:
        widest = max(map(len, self._slots_W))
        padded = np.zeros(widest, dtype=np.int64)
        padded[: value_B.size] = value_B
        parts = zip(self._team.gather(padded), self._slots_W, strict=True)
        return np.concatenate([part[: len(slots)] for part, slots in parts])
