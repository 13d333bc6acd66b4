"""The registry: which tensors hold which expert, and the map from expert to slot.

One protocol for fused tensors, per-expert modules and their optimizer state. Routers,
biases, auxiliary losses, replayed routes and checkpoints stay in logical expert ids and
are never registered; ids are mapped after top-k and before dispatch.

Axis letters: L MoE layers, E experts, P physical slots (as many as experts).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.records import Int64Array, int_array

Role = Literal["parameter", "grad", "main_grad", "state", "master"]


class _Holder(Protocol):
    """Where one kind of tensor of a parameter is kept."""

    def get(self, owner: torch.Tensor) -> torch.Tensor | None: ...

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None: ...


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
            like = value if self.slot_axis is None else owner
            whole = torch.zeros_like(like, dtype=value.dtype, requires_grad=False)
            self.holder.set(owner, whole)
        self._part(whole, slot).copy_(value)

    def _part(self, whole: torch.Tensor, slot: int) -> torch.Tensor:
        whole = whole.detach()
        return whole if self.slot_axis is None else whole.select(self.slot_axis, slot)


class ExpertRegistry:
    """What one EP rank knows about its experts.

    Parameters
    ----------
    n_layers, n_experts
        L and E.
    ep_size, ep_rank
        Size of the EP group and the place of this process in it.
    placement
        The placement that the registered tensors are in; identity when left out.

    Raises
    ------
    InstanceError
        When the experts cannot be spread equally, or the placement is for others.
    """

    def __init__(
        self,
        *,
        n_layers: int,
        n_experts: int,
        ep_size: int,
        ep_rank: int,
        placement: Placement | None = None,
    ) -> None:
        if placement is None:
            placement = Placement.identity(n_layers, n_experts, ep_size)
        shape = (*placement.slot_LE.shape, placement.num_ep_ranks)
        if shape != (n_layers, n_experts, ep_size):
            raise InstanceError(
                f"the placement is for {shape} (layers, experts, EP ranks), the"
                f" registry for {(n_layers, n_experts, ep_size)}"
            )
        if not 0 <= ep_rank < ep_size:
            raise InstanceError(
                f"ep_rank = {ep_rank} must lie between 0 and {ep_size - 1}"
            )
        self.n_layers, self.n_experts = n_layers, n_experts
        self.ep_size, self.ep_rank = ep_size, ep_rank
        self._tables = {torch.device("cpu"): torch.tensor(placement.slot_LE)}
        self._entries: tuple[list[_Entry], ...] = tuple([] for _ in range(n_layers))
        self._known: set[int] = set()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._masters: dict[torch.Tensor, torch.Tensor] = {}

    @property
    def slots_per_rank(self) -> int:
        """E / EP."""
        return self.n_experts // self.ep_size

    @property
    def placement(self) -> Placement:
        """The placement now in force."""
        slot_LE = self._tables[torch.device("cpu")].numpy().copy()
        return Placement(slot_LE=slot_LE, num_ep_ranks=self.ep_size)

    @property
    def slots_LP(self) -> Int64Array:
        """Logical expert in each physical slot, rank-major, int64 [L, E]."""
        return self.placement.expert_of_slot_LE

    def local_experts(self, layer: int) -> list[int]:
        """Return the logical experts in this rank's slots of a layer, in slot order."""
        self._require_layer(layer)
        first = self.ep_rank * self.slots_per_rank
        experts_P = self.slots_LP[layer].tolist()
        return experts_P[first : first + self.slots_per_rank]

    def physical_ids(self, layer: int, logical_ids: torch.Tensor) -> torch.Tensor:
        """Return the slot of each logical id, same shape and device, int64.

        Use it after top-k and before dispatch. The lookup is live: it follows every
        change of placement. Ids must lie in 0 to E - 1; on the CPU that is checked by
        the lookup itself, on a GPU by a device assertion; -1 is not allowed for.
        """
        self._require_layer(layer)
        return self._table(logical_ids.device)[layer][logical_ids.long()]

    def add_fused(
        self, layer: int, name: str, parameter: torch.Tensor, *, slot_axis: int = 0
    ) -> None:
        """Register a tensor that holds all local slots of a layer along one axis.

        Raises
        ------
        InstanceError
            When the axis does not hold E / EP slots, or the tensor is known already.
        """
        self._require_layer(layer)
        dims = parameter.ndim
        if not -dims <= slot_axis < dims:
            raise InstanceError(
                f"{name} has {dims} dimensions, slot_axis = {slot_axis}"
            )
        if parameter.shape[slot_axis] != self.slots_per_rank:
            raise InstanceError(
                f"{name} has shape {tuple(parameter.shape)}; axis {slot_axis} must hold"
                f" the {self.slots_per_rank} local experts of this EP rank"
            )
        self._remember(name, [parameter])
        owners = (parameter,) * self.slots_per_rank
        self._entries[layer].append(_Entry(name, owners, slot_axis % dims))

    def add_modules(self, layer: int, modules: Sequence[torch.nn.Module]) -> None:
        """Register one module per local slot, in slot order.

        Raises
        ------
        InstanceError
            When there are not E / EP modules, or they differ in parameters.
        """
        self._require_layer(layer)
        if len(modules) != self.slots_per_rank:
            raise InstanceError(
                f"layer {layer} gives {len(modules)} expert modules; this EP rank has"
                f" {self.slots_per_rank} slots"
            )
        per_module = [dict(module.named_parameters()) for module in modules]
        shapes = [{n: p.shape for n, p in each.items()} for each in per_module]
        if any(each != shapes[0] for each in shapes):
            raise InstanceError(
                f"the expert modules of layer {layer} differ in parameter names or"
                " shapes; experts that change places must be alike"
            )
        for name in per_module[0]:
            parameters = tuple(each[name] for each in per_module)
            self._remember(f"{name} of layer {layer}", parameters)
            self._entries[layer].append(_Entry(name, parameters, None))

    def add_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        masters: Mapping[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Let optimizer state of registered parameters move with them.

        Parameters
        ----------
        optimizer
            Its state may be empty still; it is looked up at every move.
        masters
            The fp32 copy of each parameter; state may be kept under either.

        Raises
        ------
        InstanceError
            When a master has another shape than its parameter.
        """
        for parameter, master in (masters or {}).items():
            if parameter.shape != master.shape:
                raise InstanceError(
                    f"a master copy has shape {tuple(master.shape)}, its parameter"
                    f" {tuple(parameter.shape)}; give whole, unsharded copies"
                )
        self._optimizers.append(optimizer)
        self._masters.update(masters or {})

    def slot_tensors(self, layer: int) -> list[SlotTensor]:
        """Return all tensors that move with the experts of a layer, as they are now.

        Raises
        ------
        InstanceError
            When an optimizer keeps state that cannot be cut into slots.
        """
        self._require_layer(layer)
        return [
            tensor
            for entry in self._entries[layer]
            for tensor in self._tensors_of(entry)
        ]

    def permute_local(self, layer: int, order: Sequence[int] | Int64Array) -> None:
        """Reorder this rank's slots: slot i gets what slot `order[i]` held.

        Tensors and the map both change. With several EP ranks the others must be told
        through `set_slots`; `materialise` does all of it.
        """
        order_M = int_array(order, name="order", ndim=1)
        if not np.array_equal(np.sort(order_M), np.arange(self.slots_per_rank)):
            raise InstanceError(
                f"order {order_M.tolist()} is no permutation of the"
                f" {self.slots_per_rank} local slots"
            )
        slots_P = self.slots_LP[layer].copy()
        moving = [int(i) for i in np.flatnonzero(order_M != np.arange(order_M.size))]
        for tensor in self.slot_tensors(layer):
            values = [_copy(tensor.read(int(order_M[i]))) for i in moving]
            for i, value in zip(moving, values, strict=True):
                tensor.write(i, value)
        first = self.ep_rank * self.slots_per_rank
        slots_P[first : first + order_M.size] = slots_P[first + order_M]
        self.set_slots(layer, slots_P)

    def set_slots(self, layer: int, slots_P: Sequence[int] | Int64Array) -> None:
        """Record which logical expert each physical slot holds; moves no tensor."""
        self._require_layer(layer)
        slots_P = int_array(slots_P, name="slots_P", ndim=1)
        if not np.array_equal(np.sort(slots_P), np.arange(self.n_experts)):
            raise InstanceError(
                f"slots of layer {layer} are no permutation of {self.n_experts} experts"
            )
        slot_E = torch.from_numpy(np.argsort(slots_P))
        for table in self._tables.values():
            table[layer].copy_(slot_E)

    def _table(self, device: torch.device) -> torch.Tensor:
        if device not in self._tables:
            self._tables[device] = self._tables[torch.device("cpu")].to(device)
        return self._tables[device]

    def _require_layer(self, layer: int) -> None:
        if not 0 <= layer < self.n_layers:
            raise InstanceError(
                f"there is no MoE layer {layer}; the registry has layers 0 to"
                f" {self.n_layers - 1}"
            )

    def _remember(self, name: str, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if id(parameter) in self._known:
                raise InstanceError(f"{name} is registered already; register it once")
            self._known.add(id(parameter))

    def _tensors_of(self, entry: "_Entry") -> Iterator[SlotTensor]:
        axis = entry.slot_axis
        owners_by_role: list[tuple[Role, tuple[torch.Tensor, ...]]]
        owners_by_role = [("parameter", entry.parameters)]
        masters = tuple(
            self._masters[p] for p in entry.parameters if p in self._masters
        )
        if masters and len(masters) != len(entry.parameters):
            raise InstanceError(
                f"only {len(masters)} of {len(entry.parameters)} experts of"
                f" {entry.name} have a master copy; register all of them"
            )
        if masters:
            owners_by_role.append(("master", masters))
        for role, owners in owners_by_role:
            key = f"{entry.name}/{role}"
            yield SlotTensor(key, role, owners, axis, _Itself())
            yield SlotTensor(f"{key}/grad", "grad", owners, axis, _Attribute("grad"))
            if any(hasattr(owner, "main_grad") for owner in owners):
                main = _Attribute("main_grad")
                yield SlotTensor(f"{key}/main_grad", "main_grad", owners, axis, main)
            for i, optimizer in enumerate(self._optimizers):
                for name in _movable_state(
                    f"{key} in optimizer {i}", optimizer, owners, fused=axis is not None
                ):
                    state = _State(optimizer, name)
                    state_key = f"{key}/optimizer {i}/{name}"
                    yield SlotTensor(state_key, "state", owners, axis, state)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A registered name: the parameter of each local slot, the same one if fused."""

    name: str
    parameters: tuple[torch.Tensor, ...]
    slot_axis: int | None


class _Itself:
    """The parameter itself, always there."""

    def get(self, owner: torch.Tensor) -> torch.Tensor:
        return owner

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None:
        raise AssertionError("a parameter is never replaced")


@dataclass(frozen=True, slots=True)
class _Attribute:
    """An attribute of the parameter: `grad`, or Megatron-Core's `main_grad`."""

    name: str

    def get(self, owner: torch.Tensor) -> torch.Tensor | None:
        return getattr(owner, self.name, None)

    def set(self, owner: torch.Tensor, value: torch.Tensor | None) -> None:
        setattr(owner, self.name, value)


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

    def _has(self, owner: torch.Tensor) -> bool:
        return owner in self.optimizer.state  # a defaultdict: asking would create it


def _movable_state(
    where: str,
    optimizer: torch.optim.Optimizer,
    owners: tuple[torch.Tensor, ...],
    *,
    fused: bool,
) -> list[str]:
    """Return the names of the state that moves with the experts.

    What all slots of a fused tensor share, such as the step count, stays; a parameter
    per expert takes its step count along.
    """
    names: set[str] = set()
    for owner in owners:
        for name, value in optimizer.state.get(owner, {}).items():
            if isinstance(value, torch.Tensor) and value.shape == owner.shape:
                names.add(name)
            elif isinstance(value, torch.Tensor) and value.numel() == 1:
                names |= set() if fused else {name}
            elif value is not None and not (fused and isinstance(value, (int, float))):
                raise InstanceError(
                    f"{where}: state '{name}' cannot be cut into experts; it needs the"
                    f" parameter's shape {tuple(owner.shape)}"
                )
    return sorted(names)


def _copy(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.clone()
