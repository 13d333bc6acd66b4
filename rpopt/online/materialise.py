"""Experts change EP ranks, with all their state, at the optimizer-step boundary.

First all ranks agree on what moves and on what there is to move; then every round,
or as many rounds as the memory limit allows at once, is one exchange. The map from
expert to slot changes last, when all ranks are done. A rank that is lost on the way
stops the others with a `CommunicationError`.

With several replicas of the experts (EDP > 1) each EP group does the same on its own;
given equal targets the replicas stay equal.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rpopt.errors import InstanceError, MismatchError
from rpopt.online.messages import (
    Deadline,
    Group,
    exchange,
    gather_json,
    message_device,
)
from rpopt.online.registration import ExpertRegistry
from rpopt.online.transfers import Transfer, after, cycles, rounds
from rpopt.plans import Placement
from rpopt.records import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """What a change of placement took on this rank.

    Parameters
    ----------
    experts_L
        Experts that changed their EP rank, per layer, over all EP ranks.
    num_exchanges
        Times that the ranks exchanged messages.
    sent_bytes, staged_bytes
        Sent by this rank in all; held for messages at one time at most.
    seconds_s
        Time from call to return, on this rank.
    """

    experts_L: Int64Array
    num_exchanges: int
    sent_bytes: int
    staged_bytes: int
    seconds_s: float


def materialise(
    registry: ExpertRegistry,
    target: Placement,
    *,
    group: Group,
    memory_limit_bytes: int,
    timeout_s: float,
    on_exchange: Callable[[int], None] | None = None,
) -> MoveReport:
    """Move experts until each is on its EP rank of the target.

    Call it on all ranks of the EP group, after `optimizer.step()` and before the next
    forward pass, with no micro-batch in flight. Experts that stay keep their slot, so
    slots inside a rank may differ from the target's; `registry.placement` is what
    holds afterwards.

    Parameters
    ----------
    registry
        The experts of this rank.
    target
        Where they shall be; the same on all ranks.
    group
        The EP group; None is the default group.
    memory_limit_bytes
        Bytes that messages may take on a rank at one time.
    timeout_s
        Time for everything; a process that is lost is noticed within it.
    on_exchange
        Called with the number of exchanges done, before each.

    Raises
    ------
    InstanceError
        When the limit does not hold one expert on its way out and one on its way in.
    MismatchError
        When the ranks differ in target, placement or tensors. Nothing has moved.
    CommunicationError
        When a rank is lost or late. Experts may be half moved: load a checkpoint.
    """
    started_s, deadline = time.perf_counter(), Deadline(timeout_s)
    schedule, cargo, limit_bytes = _agree(
        registry, target, memory_limit_bytes, group, deadline
    )
    phases = _phases(schedule, cargo, limit_bytes)
    sent = staged = 0
    for i, phase in enumerate(phases):
        if on_exchange is not None:
            on_exchange(i)
        out_bytes, held_bytes = _exchange(registry, phase, cargo, group, deadline)
        sent, staged = sent + out_bytes, max(staged, held_bytes)
    gather_json("moved", group=group, deadline=deadline)
    moved = [transfer for phase in phases for transfer in phase]
    reached = after(registry.placement, moved).expert_of_slot_LE
    experts_L = target.num_moved(registry.placement)
    for layer in np.flatnonzero(experts_L).tolist():
        registry.set_slots(layer, reached[layer])
    return MoveReport(
        experts_L=experts_L,
        num_exchanges=len(phases),
        sent_bytes=sent,
        staged_bytes=staged,
        seconds_s=time.perf_counter() - started_s,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of an expert as it travels."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * int(torch.Size(self.shape).numel())


_Cargo = dict[tuple[int, int], list[_Part]]  # (layer, physical slot) -> its tensors


_Schedule = list[list[Transfer]]


def _agree(
    registry: ExpertRegistry,
    target: Placement,
    limit_bytes: int,
    group: Group,
    deadline: Deadline,
) -> tuple[_Schedule, _Cargo, int]:
    """Return rounds, what every slot holds and the smallest memory limit.

    A rank that cannot take part says so, and all of them refuse.
    """
    mine: dict[str, Any] = {
        "placement": registry.placement.digest,
        "target": target.digest,
        "limit": limit_bytes,
        "ep": [registry.ep_size, registry.ep_rank],
    }
    schedule: _Schedule = []
    layers: list[int] = []
    try:
        schedule = rounds(cycles(registry.placement, target))
        layers = sorted({t.layer for each in schedule for t in each})
        mine["slots"] = [_contents(registry, layer) for layer in layers]
    except InstanceError as error:
        mine["error"] = str(error)
    answers = gather_json(mine, group=group, deadline=deadline)
    _require_agreement(registry, answers)
    _require_same_keys(layers, [answer["slots"] for answer in answers])
    cargo = {
        (layer, rank * registry.slots_per_rank + slot): [
            _Part(key, getattr(torch, dtype), tuple(shape))
            for key, dtype, shape in parts
        ]
        for rank, answer in enumerate(answers)
        for layer, (_, slots) in zip(layers, answer["slots"], strict=True)
        for slot, parts in enumerate(slots)
    }
    return schedule, cargo, min(answer["limit"] for answer in answers)


def _require_agreement(registry: ExpertRegistry, answers: Sequence[Any]) -> None:
    for rank, answer in enumerate(answers):
        if "error" in answer:
            raise MismatchError(f"EP rank {rank}: {answer['error']}")
    for what in ("placement", "target"):
        digests = [answer[what][:12] for answer in answers]
        if len(set(digests)) > 1:
            raise MismatchError(
                f"the EP ranks differ in their {what}: {digests}; no expert has moved"
            )
    expected = [[registry.ep_size, rank] for rank in range(registry.ep_size)]
    found = [answer["ep"] for answer in answers]
    if found != expected:
        raise MismatchError(
            f"the group's processes are (ep_size, ep_rank) {found}; give the EP group,"
            f" whose processes are {expected}"
        )


def _contents(registry: ExpertRegistry, layer: int) -> tuple[list[str], list[Any]]:
    """Return the keys of a layer and (key, dtype, shape) of what each slot holds."""
    tensors = registry.slot_tensors(layer)
    slots: list[Any] = [[] for _ in range(registry.slots_per_rank)]
    for tensor in tensors:
        for slot, parts in enumerate(slots):
            value = tensor.read(slot)
            if value is not None:
                dtype = str(value.dtype).removeprefix("torch.")
                parts.append([tensor.key, dtype, list(value.shape)])
    return [tensor.key for tensor in tensors], slots


def _require_same_keys(layers: Sequence[int], contents: Sequence[Any]) -> None:
    for i, layer in enumerate(layers):
        keys = [set(slots[i][0]) for slots in contents]
        odd = sorted(set.union(*keys) - set.intersection(*keys))
        if odd:
            raise MismatchError(
                f"layer {layer}: only some EP ranks have {odd[:4]}; register the same"
                " tensors everywhere and step each optimizer with a gradient for every"
                " registered parameter (zero if need be) before experts move"
            )


def _phases(
    schedule: Sequence[Sequence[Transfer]], cargo: _Cargo, limit_bytes: int
) -> _Schedule:
    """Join consecutive rounds while what a rank sends and receives fits the limit."""
    phases: list[list[Transfer]] = []
    room = -1
    for each in schedule:
        size = {t: _num_bytes(t, cargo) for t in each}
        need = max(size[t] + size[_arriving(t, each)] for t in each)
        if need > limit_bytes:
            raise InstanceError(
                f"memory_limit_bytes = {limit_bytes}; one expert out and one in take"
                f" {need} bytes: raise the limit"
            )
        if need > room:
            phases.append([])
            room = limit_bytes
        phases[-1] += each
        room -= need
    return phases


def _arriving(transfer: Transfer, each: Sequence[Transfer]) -> Transfer:
    """Return the transfer that refills the slot that this one frees."""
    return next(other for other in each if other.target == transfer.source)


def _num_bytes(transfer: Transfer, cargo: _Cargo) -> int:
    parts = cargo[transfer.layer, transfer.from_slot]
    return sum(part.num_bytes for part in parts)


def _exchange(
    registry: ExpertRegistry,
    phase: Sequence[Transfer],
    cargo: _Cargo,
    group: Group,
    deadline: Deadline,
) -> tuple[int, int]:
    """Send, receive and put in place; return bytes sent and bytes held."""
    device = message_device(group)
    outgoing: dict[int, list[Transfer]] = defaultdict(list)
    incoming: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in phase:
        if transfer.source == registry.ep_rank:
            outgoing[transfer.target].append(transfer)
        if transfer.target == registry.ep_rank:
            incoming[transfer.source].append(transfer)
    sends = [
        (rank, _packed(registry, outgoing[rank], cargo, device))
        for rank in sorted(outgoing)
    ]
    receives = [
        (
            rank,
            torch.empty(
                sum(_num_bytes(t, cargo) for t in incoming[rank]),
                dtype=torch.uint8,
                device=device,
            ),
        )
        for rank in sorted(incoming)
    ]
    exchange(sends, receives, group=group, deadline=deadline)
    for rank, message in receives:
        _unpack(registry, incoming[rank], cargo, message)
    sent = sum(message.numel() for _, message in sends)
    return sent, sent + sum(message.numel() for _, message in receives)


def _packed(
    registry: ExpertRegistry,
    transfers: Sequence[Transfer],
    cargo: _Cargo,
    device: torch.device,
) -> torch.Tensor:
    """Return the tensors of the experts, one after the other, as bytes."""
    message = torch.empty(
        sum(_num_bytes(t, cargo) for t in transfers), dtype=torch.uint8, device=device
    )
    start = 0
    for transfer in transfers:
        tensors = {t.key: t for t in registry.slot_tensors(transfer.layer)}
        slot = transfer.from_slot % registry.slots_per_rank
        for part in cargo[transfer.layer, transfer.from_slot]:
            value = tensors[part.key].read(slot)
            assert value is not None
            end = start + part.num_bytes
            message[start:end] = value.contiguous().view(-1).view(torch.uint8)
            start = end
    return message


def _unpack(
    registry: ExpertRegistry,
    transfers: Sequence[Transfer],
    cargo: _Cargo,
    message: torch.Tensor,
) -> None:
    """Put what arrived into its slots; what did not come along is emptied there."""
    start = 0
    for transfer in transfers:
        tensors = {t.key: t for t in registry.slot_tensors(transfer.layer)}
        slot = transfer.to_slot % registry.slots_per_rank
        for part in cargo[transfer.layer, transfer.from_slot]:
            end = start + part.num_bytes
            value = message[start:end].clone().view(part.dtype).reshape(part.shape)
            tensors.pop(part.key).write(slot, value)
            start = end
        for absent in tensors.values():
            absent.write(slot, None)
