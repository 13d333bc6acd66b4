"""The processes of the throughput study: train, and note the CPU seconds of each part.

Every process is one single-threaded DP rank on gloo. The step is `train_step` as it is;
only the collectives are replaced by ones that read the clock first.

Axis letters: D ranks, C collectives of a step.
"""

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tqdm import tqdm

from rpopt.plans import Placement
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import Parallel, parallel
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.slots import PlacedSlots
from rpopt.trainer.step import Cell, Sample, train_step

COLLECTIVES = ("all_to_all_single", "all_reduce", "all_gather_object")
_TIMEOUT = timedelta(minutes=10)  # a slow rank of a full machine is no lost one
# Freed memory stays with the process, as with the caching allocators of accelerators:
# otherwise the system clears every large tensor's pages anew, in every layer.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A placement, and the samples of every cell: cells[rank][row]."""

    name: str
    placement: Placement
    cells: Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One step on one rank.

    Parameters
    ----------
    wall_s
        Seconds from a barrier until this rank is done.
    cpu_C
        CPU seconds before each collective, and after the last.
    peers_C
        The ranks that meet in each collective; in the end, all.
    """

    wall_s: float
    cpu_C: npt.NDArray[np.float64]
    peers_C: tuple[tuple[int, ...], ...]


Timings = list[list[list[Timing]]]
"""By repeat, trial and rank."""


class Recorder:
    """CPU seconds of this thread between collectives; those inside do not count."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._everybody = tuple(range(dist.get_world_size()))
        self._cpu: list[float] = []
        self._peers: list[tuple[int, ...]] = []
        self._since_s = self._wall_s = 0.0

    @contextmanager
    def installed(self) -> Iterator["Recorder"]:
        """Replace the collectives of torch.distributed."""
        with ExitStack() as stack:
            for name in COLLECTIVES:
                timed = self._timed(getattr(dist, name))
                stack.enter_context(patch.object(dist, name, timed))
            yield self

    def start(self) -> None:
        self._cpu, self._peers = [], []
        self._wall_s, self._since_s = time.perf_counter(), time.thread_time()

    def stop(self) -> Timing:
        self._note(self._everybody)
        return Timing(
            wall_s=time.perf_counter() - self._wall_s,
            cpu_C=np.array(self._cpu),
            peers_C=tuple(self._peers),
        )

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, group: Any = None, **kwargs: Any) -> Any:
            self._note(tuple(dist.get_process_group_ranks(group)))
            result = collective(*args, group=group, **kwargs)
            self._since_s = time.thread_time()
            return result

        return call

    def _note(self, peers: tuple[int, ...]) -> None:
        # The thread's clock misses work elsewhere: backward passes of CPU tensors run
        # in the thread that asks for them.
        assert threading.get_ident() == self._thread
        self._cpu.append(time.thread_time() - self._since_s)
        self._peers.append(peers)


def measure(
    trials: Sequence[Trial],
    samples: Sequence[Sample],
    shape: ModelShape,
    *,
    ep: int,
    repeats: int,
    seed: int,
) -> Timings:
    """Train every trial `repeats` times; each repeat begins with another trial.

    One more repeat comes before them and is dropped.
    """
    world = len(trials[0].cells)
    queue = mp.get_context("spawn").SimpleQueue()
    args = (world, ep, _free_port(), trials, samples, shape, repeats, seed, queue)
    with patch.dict(os.environ, _KEEP_MEMORY):
        processes = mp.spawn(_run_rank, args=args, nprocs=world, join=False)
    found: dict[int, Any] = {}
    while len(found) < world:
        if queue.empty():
            processes.join(timeout=0.2)  # raises what a rank raised
        else:
            rank, timings = queue.get()
            found[rank] = timings
    while not processes.join():
        pass
    by_rank = [found[rank] for rank in range(world)]
    return [
        [list(ranks) for ranks in zip(*rounds, strict=True)]
        for rounds in zip(*by_rank, strict=True)
    ]


def _run_rank(
    rank: int,
    world: int,
    ep: int,
    port: int,
    trials: Sequence[Trial],
    samples: Sequence[Sample],
    shape: ModelShape,
    repeats: int,
    seed: int,
    queue: Any,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=_TIMEOUT,
    )
    groups = parallel(ep)
    trained = {t.placement.digest: t.placement for t in trials}
    models = {
        digest: _model(placement, shape, groups, seed)
        for digest, placement in trained.items()
    }
    steps = [
        _step(trial, samples, groups, *models[trial.placement.digest])
        for trial in trials
    ]
    rounds = []
    with Recorder().installed() as recorder:
        for repeat in tqdm(range(1 + repeats), disable=None if rank == 0 else True):
            timings: dict[int, Timing] = {}
            for at in rotated(range(len(trials)), repeat):
                dist.barrier()
                recorder.start()
                steps[at]()
                timings[at] = recorder.stop()
            rounds.append([timings[at] for at in range(len(trials))])
    queue.put((rank, rounds[1:]))
    dist.barrier()
    dist.destroy_process_group()


def _model(
    placement: Placement, shape: ModelShape, groups: Parallel, seed: int
) -> tuple[Model, PlacedSlots, torch.optim.Optimizer]:
    slots = PlacedSlots(placement, groups.ep_rank)
    model = Model(shape, slots, seed=seed, group=groups.ep_group)
    return model, slots, torch.optim.AdamW(model.parameters(), lr=1e-4)


def _step(
    trial: Trial,
    samples: Sequence[Sample],
    groups: Parallel,
    model: Model,
    slots: PlacedSlots,
    optimizer: torch.optim.Optimizer,
) -> Callable[[], Any]:
    """Return a call that trains this rank's cells once."""
    cells: list[Cell] = [
        [samples[i] for i in cell] for cell in trial.cells[groups.rank]
    ]
    return lambda: train_step(model, slots, optimizer, cells, groups)


def rotated(items: Sequence[int], by: int) -> Iterator[int]:
    """Return the items, beginning with another one."""
    start = by % len(items)
    return itertools.chain(items[start:], items[:start])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
