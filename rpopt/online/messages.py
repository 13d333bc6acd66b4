"""Messages between the processes of a group, each within a time limit.

Everything is sent as bytes through `torch.distributed`, with gloo or NCCL alike. A peer
that does not answer in time, or whose connection is lost, is a `CommunicationError`:
the group cannot be used any more and training must resume from a checkpoint.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rpopt.errors import CommunicationError

Group = dist.ProcessGroup | None


class Deadline:
    """A point in time that several waits share; None leaves it to the group's limit."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end_s = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def left(self) -> timedelta:
        """Time left; never 0 but for None, as torch reads it as the group's limit."""
        if self._end_s is None:
            return timedelta(0)
        return timedelta(seconds=max(0.001, self._end_s - time.monotonic()))


def group_rank(group: Group) -> int:
    """Return the rank of this process in a group."""
    return dist.get_rank(group)


def group_size(group: Group) -> int:
    """Return the number of processes of a group."""
    return dist.get_world_size(group)


def message_device(group: Group) -> torch.device:
    """Return where the tensors of messages must be."""
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def own_group(group: Group, timeout_s: float) -> Any:
    """Return a new gloo group of the same processes, in which no wait is longer.

    torch names it by the number of groups that a process is in already, which must be
    the same for all processes of the group.
    """
    return dist.new_group(
        dist.get_process_group_ranks(group or dist.group.WORLD),
        backend="gloo",
        timeout=timedelta(seconds=timeout_s),
        use_local_synchronization=True,
    )


@contextmanager
def clear_error() -> Iterator[None]:
    """Turn what a backend raises for a lost or silent peer into one clear error."""
    try:
        yield
    except RuntimeError as error:
        raise CommunicationError(
            "a process of the group was lost or did not answer in time"
            f" ({str(error).splitlines()[0][:200]}); stop all processes and resume from"
            " the last checkpoint"
        ) from error


def gather_bytes(payload: bytes, *, group: Group, deadline: Deadline) -> list[bytes]:
    """Return the payload of every process of the group, in rank order."""
    size, device = dist.get_world_size(group), message_device(group)
    counts = _gather(torch.tensor([len(payload)], device=device), size, group, deadline)
    lengths = [int(count) for count in counts]
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(payload)] = as_bytes(payload, device)
    parts = _gather(padded, size, group, deadline)
    pairs = zip(parts, lengths, strict=True)
    return [part[:length].cpu().numpy().tobytes() for part, length in pairs]


def gather_json(value: Any, *, group: Group, deadline: Deadline) -> list[Any]:
    """Return the JSON value of every process of the group, in rank order."""
    payload = json.dumps(value, sort_keys=True).encode()
    parts = gather_bytes(payload, group=group, deadline=deadline)
    return [json.loads(part) for part in parts]


def broadcast_bytes(
    payload: bytes | None, *, source: int, group: Group, deadline: Deadline
) -> bytes:
    """Return what the process with group rank `source` gives; others give None."""
    device = message_device(group)
    length = torch.tensor([len(payload or b"")], device=device)
    _broadcast(length, source, group, deadline)
    data = as_bytes(payload, device) if payload else None
    if data is None:
        data = torch.zeros(int(length), dtype=torch.uint8, device=device)
    _broadcast(data, source, group, deadline)
    return data.cpu().numpy().tobytes()


def exchange(
    sends: Sequence[tuple[int, torch.Tensor]],
    receives: Sequence[tuple[int, torch.Tensor]],
    *,
    group: Group,
    deadline: Deadline,
) -> None:
    """Send and receive pairs of (group rank, bytes), all at once."""
    operations = [
        dist.P2POp(dist.isend, tensor, group=group, group_peer=rank)
        for rank, tensor in sends
    ] + [
        dist.P2POp(dist.irecv, tensor, group=group, group_peer=rank)
        for rank, tensor in receives
    ]
    with clear_error():
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait(deadline.left)


def as_bytes(payload: bytes, device: torch.device) -> torch.Tensor:
    """Return a payload as a uint8 tensor."""
    if not payload:
        return torch.zeros(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)


def _gather(
    tensor: torch.Tensor, size: int, group: Group, deadline: Deadline
) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(size)]
    with clear_error():
        work = dist.all_gather(parts, tensor, group=group, async_op=True)
        work.wait(deadline.left)
    return parts


def _broadcast(
    tensor: torch.Tensor, source: int, group: Group, deadline: Deadline
) -> None:
    with clear_error():
        work = dist.broadcast(tensor, group=group, group_src=source, async_op=True)
        work.wait(deadline.left)
