"""The registry: which tensors hold which expert, and the map from expert to slot.

One protocol for fused tensors, per-expert modules and their optimizer state. Routers,
biases, auxiliary losses, replayed routes and checkpoints stay in logical expert ids and
are never registered; ids are mapped after top-k and before dispatch.

Axis letters: L MoE layers, E experts, P physical slots (as many as experts).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import torch

from rpopt.errors import InstanceError
from rpopt.online.slot_tensors import Entry, SlotTensor
from rpopt.plans import Placement
from rpopt.records import Int64Array, int_array


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
        self._entries: tuple[list[Entry], ...] = tuple([] for _ in range(n_layers))
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
        self._entries[layer].append(Entry(name, owners, slot_axis % dims))

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
            self._entries[layer].append(Entry(name, parameters, None))

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

    def slot_tensors(
        self, layer: int, *, expected: Collection[str] = ()
    ) -> list[SlotTensor]:
        """Return all tensors that move with the experts of a layer, as they are now.

        Parameters
        ----------
        layer
            The MoE layer.
        expected
            Keys of optimizer state to return though there is none yet, for a
            checkpoint that brings it.

        Raises
        ------
        InstanceError
            When an optimizer keeps state that cannot be cut into slots.
        """
        self._require_layer(layer)
        return [
            tensor
            for entry in self._entries[layer]
            for tensor in entry.tensors(self._optimizers, self._masters, expected)
        ]

    def shared_tensors(
        self, layer: int, *, expected: Collection[str] = ()
    ) -> list[SlotTensor]:
        """Return what all slots of a fused tensor share, as one slot: step counts."""
        self._require_layer(layer)
        return [
            tensor
            for entry in self._entries[layer]
            for tensor in entry.shared(self._optimizers, self._masters, expected)
        ]

    def dense_tensors(
        self, model: torch.nn.Module, *, expected: Collection[str] = ()
    ) -> list[SlotTensor]:
        """Return all of a model that is not registered, each tensor as one slot.

        Raises
        ------
        InstanceError
            When an optimizer steps a parameter that is neither in the model nor
            registered.
        """
        kept = model.state_dict(keep_vars=True)
        dense = {
            name: tensor
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if name in kept and id(tensor) not in self._known
        }
        self._require_all_named(dense.values())
        return [
            tensor
            for name, owner in dense.items()
            for tensor in Entry(name, (owner,), None).tensors(
                self._optimizers, self._masters, expected
            )
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

    def _require_all_named(self, dense: Iterable[torch.Tensor]) -> None:
        masters = {id(master) for master in self._masters.values()}
        named = self._known | {id(tensor) for tensor in dense} | masters
        for i, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in named:
                        raise InstanceError(
                            f"optimizer {i} steps a parameter of shape"
                            f" {tuple(parameter.shape)} that is neither registered, nor"
                            " a master copy, nor in the model"
                        )

    def _remember(self, name: str, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if id(parameter) in self._known:
                raise InstanceError(f"{name} is registered already; register it once")
            self._known.add(id(parameter))


def _copy(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.clone()
