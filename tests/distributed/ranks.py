"""Start real gloo processes, some of which may be killed on purpose."""

import multiprocessing as mp
import os
import signal
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 120


def run_ranks(
    work: Callable[..., Any], world_size: int, *args: Any, lost: tuple[int, ...] = ()
) -> list[Any]:
    """Call `work(*args)` on every rank of a new group; return results by rank.

    A rank that raises has the exception as its result; one of the `lost`, which kill
    themselves, has None.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("forkserver")  # torch is imported once, by the server
    context.set_forkserver_preload(["torch.distributed", "rpopt.online.materialise"])
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(
            target=_rank, args=(rank, world_size, port, pipes[rank][1], work, args)
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    end_s = time.monotonic() + PATIENCE_S
    try:
        results: list[Any] = [None] * world_size
        for rank in set(range(world_size)) - set(lost):
            if not pipes[rank][0].poll(max(0.0, end_s - time.monotonic())):
                raise TimeoutError(f"rank {rank} gave no result within {PATIENCE_S} s")
            results[rank] = pipes[rank][0].recv()
        return results
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def results_of(work: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """Return results as `run_ranks` does, raising the first exception among them."""
    results = run_ranks(work, world_size, *args)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def die() -> None:
    """End this process as a machine failure would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _rank(
    rank: int, size: int, port: int, pipe: Any, work: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    try:
        result = work(*args)
    except Exception as error:  # sent to the test, which judges it
        result = error
        result.__cause__ = None
        pipe.send(result)
        return
    dist.barrier()
    pipe.send(result)
    dist.destroy_process_group()
