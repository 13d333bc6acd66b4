"""Real processes that form a gloo group and run one function, with a time limit."""

import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

Task = Callable[[int], Any]


def run_group(
    task: Task, size: int, folder: Path, *, lost: tuple[int, ...] = ()
) -> dict[int, Any]:
    """Return what the task returned in each process but the lost ones.

    A file is the meeting place, so no port has to be free.
    """
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=_member, args=(task, rank, size, folder, answers))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    deadline_s = time.monotonic() + 60
    try:
        while len(found) < size - len(lost):
            rank, ok, value = answers.get(timeout=deadline_s - time.monotonic())
            assert ok, f"process {rank} failed:\n{value}"
            found[rank] = value
    except queue.Empty:
        raise AssertionError(f"only processes {sorted(found)} answered") from None
    finally:
        for rank, process in enumerate(processes):
            if rank not in lost and len(found) == size - len(lost):
                process.join(timeout=20)
            process.kill()
            process.join()
    return found


def die(rank: int) -> None:
    """End this process at once, without goodbye."""
    os._exit(rank)


def stall(rank: int) -> None:
    """Stop this process where it is; its connections stay open."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _member(task: Task, rank: int, size: int, folder: Path, answers: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    try:
        answers.put((rank, True, task(rank)))
    except BaseException:
        answers.put((rank, False, traceback.format_exc()))
    answers.close()
    answers.join_thread()
    os._exit(0)  # the group may be broken on purpose
