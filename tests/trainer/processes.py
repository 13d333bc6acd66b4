"""Start real gloo processes and collect what each returns."""

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_S = 60


def run_ranks(work: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Call `work(*args)` on every rank of a new group; return the results by rank.

    `work` is a function at the top of a module; its results are pickled.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    processes = mp.spawn(
        _rank,
        args=(world_size, port, queue, work, args),
        nprocs=world_size,
        join=False,
    )
    results = dict(queue.get() for _ in range(world_size) if _alive(processes, queue))
    while not processes.join():
        pass
    return [results[rank] for rank in range(world_size)]


def _alive(processes: Any, queue: Any) -> bool:
    """Wait for a result; raises what a process raised instead of waiting for ever."""
    while queue.empty():
        if processes.join(timeout=0.05):
            return not queue.empty()
    return True


def _rank(
    rank: int, size: int, port: int, queue: Any, work: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        queue.put((rank, work(*args)))
        dist.barrier()
    finally:
        dist.destroy_process_group()
