"""All that belongs to the experts and to the rest of a model, by logical name.

Names are `experts/<layer>/<logical expert>/<key>`; `shared/<layer>/<key>` for step
counts that all experts of a fused tensor share; `dense/<key>` for the rest of a model.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rpopt.errors import MismatchError
from rpopt.online.registration import ExpertRegistry
from rpopt.online.slot_tensors import SlotTensor

_STORED = ("parameter", "master", "state")

Tensors = dict[str, torch.Tensor]


def state_dict(registry: ExpertRegistry) -> Tensors:
    """Return views of this rank's experts by logical name.

    Add them to what a trainer gives to `torch.distributed.checkpoint` itself.
    """
    return values_of(expert_places(registry))


def load_state_dict(registry: ExpertRegistry, state: Mapping[str, Any]) -> None:
    """Take over this rank's experts, with optimizer state that there may not be yet.

    Raises
    ------
    MismatchError
        When a tensor is missing or has another shape or type. Nothing has changed.
    """
    places = expert_places(registry, state)
    for name, place in places.items():
        if name in state:
            place.require_like(name, state[name].shape, state[name].dtype)
    require_complete(places, state)
    write(places, state)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the value of one stored name is."""

    tensor: SlotTensor
    slot: int

    def require_like(
        self, name: str, shape: torch.Size | tuple[int, ...], dtype: torch.dtype
    ) -> None:
        """Refuse a value that is not what is there now, if anything is."""
        present = self.tensor.read(self.slot)
        if present is not None and (present.shape, present.dtype) != (shape, dtype):
            raise MismatchError(
                f"'{name}' is {dtype} {tuple(shape)} in the checkpoint and"
                f" {present.dtype} {tuple(present.shape)} in the model"
            )


def expert_places(
    registry: ExpertRegistry, stored: Collection[str] = ()
) -> dict[str, Place]:
    """Return the places of all stored names of this rank's experts.

    Optimizer state counts where there is some, or where a checkpoint has it.
    """
    found: dict[str, Place] = {}
    for layer in range(registry.n_layers):
        keys = _keys(stored, f"experts/{layer}/", 3)
        tensors = registry.slot_tensors(layer, expected=keys)
        for slot, expert in enumerate(registry.local_experts(layer)):
            for tensor in tensors:
                if tensor.role in _STORED:
                    name = f"experts/{layer}/{expert}/{tensor.key}"
                    found[name] = Place(tensor, slot)
        keys = _keys(stored, f"shared/{layer}/", 2)
        for tensor in registry.shared_tensors(layer, expected=keys):
            found[f"shared/{layer}/{tensor.key}"] = Place(tensor, 0)
    return found


def places_of(
    registry: ExpertRegistry, model: torch.nn.Module, stored: Collection[str] = ()
) -> dict[str, Place]:
    """Return the places of all stored names of this rank."""
    keys = _keys(stored, "dense/", 1)
    return expert_places(registry, stored) | {
        f"dense/{tensor.key}": Place(tensor, 0)
        for tensor in registry.dense_tensors(model, expected=keys)
        if tensor.role in _STORED
    }


def values_of(places: Mapping[str, Place]) -> Tensors:
    """Return views of all that is there."""
    read = {name: place.tensor.read(place.slot) for name, place in places.items()}
    return {name: value for name, value in read.items() if value is not None}


def buffers(places: Mapping[str, Place], stored: Mapping[str, Any]) -> Tensors:
    """Return room for all that is stored, by its metadata."""
    values: Tensors = {}
    for name, place in places.items():
        if name in stored:
            size, dtype = stored[name].size, stored[name].properties.dtype
            place.require_like(name, size, dtype)
            values[name] = torch.empty(size, dtype=dtype)
    return values


def require_complete(places: Mapping[str, Place], stored: Collection[str]) -> None:
    """Refuse a checkpoint that lacks something of this rank's, or has more of it."""
    lacking = [
        name
        for name, place in places.items()
        if name not in stored and place.tensor.role != "state"
    ]
    own = {_whose(name) for name in places}
    unknown = [n for n in stored if n not in places and _whose(n) in own]
    if lacking or unknown:
        raise MismatchError(
            f"the checkpoint lacks {lacking[:3]} and has {unknown[:3]} that the model"
            " lacks; load one of the same model and optimizers"
        )


def write(places: Mapping[str, Place], values: Mapping[str, Any]) -> None:
    """Put all values in place; optimizer state that is not among them is dropped."""
    for place in places.values():
        if place.tensor.role == "state":
            place.tensor.clear()
    for name, place in places.items():
        if name in values:
            place.tensor.write(place.slot, values[name])


def _keys(stored: Iterable[str], prefix: str, depth: int) -> set[str]:
    return {name.split("/", depth)[depth] for name in stored if name.startswith(prefix)}


def _whose(name: str) -> str:
    """Return `experts/<layer>/<expert>`, or what comes before the first slash."""
    head, _, rest = name.partition("/")
    return "/".join([head, *rest.split("/")[:2]]) if head == "experts" else head
