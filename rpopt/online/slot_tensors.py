"""What belongs to an expert: its tensors, slot by slot, wherever they are kept.

A parameter brings its gradient, its master copy and its optimizer state. All are seen
through one record, so moving and saving experts is reading and writing slots.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from rpopt.errors import InstanceError

Role = Literal["parameter", "grad", "main_grad", "state", "master"]
Optimizers = Sequence[torch.optim.Optimizer]
Masters = Mapping[torch.Tensor, torch.Tensor]


class _Holder(Protocol):
    """Where one kind of tensor of a parameter is kept."""

    def get(self, owner: torch.Tensor) -> torch.Tensor | None: ...

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None: ...

    def number_device(self, owner: torch.Tensor) -> torch.device: ...


@dataclass(frozen=True, slots=True)
class SlotTensor:
    """One kind of tensor of a layer, seen slot by slot.

    Parameters
    ----------
    key
        Name and role; the same on every EP rank.
    role
        What it is.
    owners
        The parameter (or its master copy) of each local slot.
    slot_axis
        The axis that tells the slots of a fused tensor apart; None for one parameter
        per slot.
    """

    key: str
    role: Role
    owners: tuple[torch.Tensor, ...]
    slot_axis: int | None
    holder: _Holder

    def read(self, slot: int) -> torch.Tensor | None:
        """Return a view of what a local slot holds; None where there is nothing."""
        whole = self.holder.get(self.owners[slot])
        return None if whole is None else self._part(whole, slot)

    def write(self, slot: int, value: torch.Tensor | None) -> None:
        """Copy a value of the same shape into a local slot; None empties it.

        An emptied slot of a fused tensor is zero, as its neighbours stay.
        """
        owner = self.owners[slot]
        whole = self.holder.get(owner)
        if value is None:
            if self.slot_axis is None:
                self.holder.set(owner, None)
            elif whole is not None:
                self._part(whole, slot).zero_()
            return
        if whole is None:
            whole = self._blank(owner, value)
            self.holder.set(owner, whole)
        self._part(whole, slot).copy_(value)

    def clear(self) -> None:
        """Drop what is kept for all slots."""
        for owner in self.owners:
            self.holder.set(owner, None)

    def _blank(self, owner: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self.slot_axis is not None or value.shape == owner.shape:
            return torch.zeros_like(owner, dtype=value.dtype, requires_grad=False)
        return torch.zeros_like(value, device=self.holder.number_device(owner))

    def _part(self, whole: torch.Tensor, slot: int) -> torch.Tensor:
        whole = whole.detach()
        return whole if self.slot_axis is None else whole.select(self.slot_axis, slot)


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered name: the parameter of each local slot, the same one if fused."""

    name: str
    parameters: tuple[torch.Tensor, ...]
    slot_axis: int | None

    def tensors(
        self, optimizers: Optimizers, masters: Masters, expected: Collection[str] = ()
    ) -> Iterator[SlotTensor]:
        """Yield all that moves with the experts.

        `expected` names keys of optimizer state to yield though there is none yet.
        """
        axis = self.slot_axis
        for role, owners in self._owners(masters):
            key = f"{self.name}/{role}"
            yield SlotTensor(key, role, owners, axis, _Itself())
            yield SlotTensor(f"{key}/grad", "grad", owners, axis, _Attribute("grad"))
            if any(hasattr(owner, "main_grad") for owner in owners):
                main = _Attribute("main_grad")
                yield SlotTensor(f"{key}/main_grad", "main_grad", owners, axis, main)
            for i, optimizer in enumerate(optimizers):
                prefix = f"{key}/optimizer {i}/"
                weights, numbers = _state_names(
                    prefix, optimizer, owners, python_numbers=axis is not None
                )
                names = weights if axis is not None else weights | numbers
                for name in sorted(names | _under(prefix, expected)):
                    state = _State(optimizer, name)
                    yield SlotTensor(prefix + name, "state", owners, axis, state)

    def shared(
        self, optimizers: Optimizers, masters: Masters, expected: Collection[str] = ()
    ) -> Iterator[SlotTensor]:
        """Yield what the slots of a fused tensor share and does not move: step counts.

        Each is seen as one slot that is the whole.
        """
        if self.slot_axis is None:
            return
        for role, owners in self._owners(masters):
            for i, optimizer in enumerate(optimizers):
                prefix = f"{self.name}/{role}/optimizer {i}/"
                _, names = _state_names(prefix, optimizer, owners, python_numbers=False)
                for name in sorted(names | _under(prefix, expected)):
                    state = _State(optimizer, name)
                    yield SlotTensor(prefix + name, "state", owners[:1], None, state)

    def _owners(self, masters: Masters) -> list[tuple[Role, tuple[torch.Tensor, ...]]]:
        """Return the parameters and, where there are any, their master copies."""
        found: list[tuple[Role, tuple[torch.Tensor, ...]]]
        found = [("parameter", self.parameters)]
        copies = tuple(masters[p] for p in self.parameters if p in masters)
        if copies and len(copies) != len(self.parameters):
            raise InstanceError(
                f"only {len(copies)} of {len(self.parameters)} experts of {self.name}"
                " have a master copy; register all of them"
            )
        return [*found, ("master", copies)] if copies else found


class _Itself:
    """The parameter itself, always there."""

    def get(self, owner: torch.Tensor) -> torch.Tensor:
        return owner

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None:
        raise AssertionError("a parameter is never replaced")

    def number_device(self, owner: torch.Tensor) -> torch.device:
        return owner.device


@dataclass(frozen=True, slots=True)
class _Attribute:
    """An attribute of the parameter: `grad`, or Megatron-Core's `main_grad`."""

    name: str

    def get(self, owner: torch.Tensor) -> torch.Tensor | None:
        return getattr(owner, self.name, None)

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None:
        setattr(owner, self.name, value)

    def number_device(self, owner: torch.Tensor) -> torch.device:
        return owner.device


@dataclass(frozen=True, slots=True)
class _State:
    """One entry of the optimizer's state of the parameter."""

    optimizer: torch.optim.Optimizer
    name: str

    def get(self, owner: torch.Tensor) -> torch.Tensor | None:
        return self.optimizer.state[owner].get(self.name) if self._has(owner) else None

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None:
        if value is not None:
            self.optimizer.state[owner][self.name] = value
        elif self._has(owner):
            self.optimizer.state[owner].pop(self.name, None)

    def number_device(self, owner: torch.Tensor) -> torch.device:
        """Return where torch's optimizers want a step count."""
        for group in self.optimizer.param_groups:
            if any(owner is parameter for parameter in group["params"]):
                beside = group.get("capturable") or group.get("fused")
                return owner.device if beside else torch.device("cpu")
        return torch.device("cpu")

    def _has(self, owner: torch.Tensor) -> bool:
        return owner in self.optimizer.state  # a defaultdict: asking would create it


def _state_names(
    where: str,
    optimizer: torch.optim.Optimizer,
    owners: Sequence[torch.Tensor],
    *,
    python_numbers: bool,
) -> tuple[set[str], set[str]]:
    """Return the names of state with a value per weight, and with one number.

    Numbers that are no tensors stay where they are, if they are allowed.
    """
    weights: set[str] = set()
    numbers: set[str] = set()
    for owner in owners:
        for name, value in optimizer.state.get(owner, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == owner.shape:
                weights.add(name)
            elif isinstance(value, torch.Tensor) and value.numel() == 1:
                numbers.add(name)
            elif isinstance(value, int | float) and python_numbers:
                continue
            elif value is not None:
                raise InstanceError(
                    f"{where}: state '{name}' cannot be cut into experts; it needs a"
                    f" tensor of the parameter's shape {tuple(owner.shape)} or of one"
                    " number"
                )
    return weights, numbers


def _under(prefix: str, keys: Collection[str]) -> set[str]:
    return {key[len(prefix) :] for key in keys if key.startswith(prefix)}
