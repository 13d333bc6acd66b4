"""Placement inside a stack: its expert parameters join the registry, ids are mapped.

Each function walks over the MoE layers of a model in order, registers their expert
parameters (optimizer state follows through `ExpertRegistry.add_optimizer`), and hooks
the map from logical expert to slot between top-k and dispatch. Routers, their biases,
auxiliary losses and replayed routes keep logical ids.

Axis letters: T tokens, E experts, P physical slots (as many as experts).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from rpopt.errors import InstanceError, MismatchError
from rpopt.online.registration import ExpertRegistry
from rpopt.plans import Placement

_TRANSFORMERS = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
_TORCHTITAN = ("w1_EFD", "w2_EDF", "w3_EFD")


def register_transformers(
    registry: ExpertRegistry, model: nn.Module
) -> list[RemovableHandle]:
    """Register a Hugging Face model with fused experts; return the hooks.

    The experts' modules hold `gate_up_proj` and `down_proj` with the experts on axis 0
    (transposed and with biases in gpt-oss), and are called with states, ids, weights.

    Raises
    ------
    MismatchError
        When the model has not as many MoE layers as the registry.
    """
    layers = [m for m in model.modules() if _has(m, ("gate_up_proj", "down_proj"))]
    _require_layers(registry, len(layers))

    def hook(layer: int) -> Any:
        def map_ids(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            states, ids, *rest = args
            return states, registry.physical_ids(layer, ids), *rest

        return map_ids

    handles = []
    for layer, experts in enumerate(layers):
        _add_fused(registry, layer, experts, _TRANSFORMERS)
        handles.append(experts.register_forward_pre_hook(hook(layer)))
    return handles


def register_torchtitan(
    registry: ExpertRegistry, model: nn.Module
) -> list[RemovableHandle]:
    """Register a torchtitan model; return the hooks.

    A layer's `RoutedExperts` is called with states, scores, ids and the number of
    local tokens per expert; ids are mapped and the counts reordered.

    Raises
    ------
    MismatchError
        When the model has not as many MoE layers as the registry.
    InstanceError
        When parameters are sharded (DTensor): register before `fully_shard`.
    """
    layers = [
        m
        for m in model.modules()
        if _has(getattr(m, "inner_experts", None), _TORCHTITAN)
    ]
    _require_layers(registry, len(layers))

    def hook(layer: int) -> Any:
        def map_ids(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            states, scores, ids, count_E = args
            count_P = count_E[_expert_of_slot(registry, layer, count_E.device)]
            return states, scores, registry.physical_ids(layer, ids), count_P

        return map_ids

    handles = []
    for layer, routed in enumerate(layers):
        inner: Any = routed.inner_experts
        _add_fused(registry, layer, inner, _TORCHTITAN)
        handles.append(routed.register_forward_pre_hook(hook(layer)))
    return handles


def register_megatron(
    registry: ExpertRegistry, moe_layers: Sequence[nn.Module]
) -> list[RemovableHandle]:
    """Register Megatron-Core MoE layers of one pipeline stage; return the hooks.

    Sequential experts are modules of their own; grouped experts are the parameters
    `weight0`, `weight1`, ... of `linear_fc1` and `linear_fc2`. A router returns
    probabilities and routing map, [T, E] each; their columns leave in slot order.

    Raises
    ------
    MismatchError
        When there are not as many MoE layers as in the registry.
    InstanceError
        For the removed `GroupedMLP`, whose parameters mix experts.
    """
    _require_layers(registry, len(moe_layers))

    def hook(layer: int) -> Any:
        def map_columns(_: nn.Module, __: Any, output: Any) -> Any:
            slots = _expert_of_slot(registry, layer, output[0].device)
            return tuple(columns_TE[:, slots] for columns_TE in output)

        return map_columns

    handles = []
    for layer, moe in enumerate(moe_layers):
        registry.add_modules(layer, _megatron_experts(moe.experts, registry))
        router: Any = moe.router
        handles.append(router.register_forward_hook(hook(layer)))
    return handles


def apply_local(registry: ExpertRegistry, target: Placement) -> None:
    """Move the experts of an EP group of one rank to a placement.

    With several EP ranks, `rpopt.online` moves experts between them.
    """
    current = registry.placement
    for layer in range(registry.n_layers):
        order = current.slot_LE[layer][target.expert_of_slot_LE[layer]]
        registry.permute_local(layer, order)


def _has(module: nn.Module | None, names: Sequence[str]) -> bool:
    found = [getattr(module, name, None) for name in names]
    return all(isinstance(p, torch.Tensor) and p.ndim == 3 for p in found)


def _require_layers(registry: ExpertRegistry, found: int) -> None:
    if found != registry.n_layers:
        raise MismatchError(
            f"the model has {found} MoE layers of this kind, the registry"
            f" {registry.n_layers}; count MoE layers only, without dense ones"
        )


def _add_fused(
    registry: ExpertRegistry, layer: int, experts: nn.Module, names: Sequence[str]
) -> None:
    for name in names:
        parameter = getattr(experts, name, None)
        if parameter is None:
            continue
        if hasattr(parameter, "to_local"):
            raise InstanceError(
                f"{name} of layer {layer} is sharded (DTensor); register whole local"
                " parameters, before they are sharded"
            )
        registry.add_fused(layer, f"{name} of layer {layer}", parameter)


def _megatron_experts(experts: Any, registry: ExpertRegistry) -> Sequence[nn.Module]:
    """Return one module per local slot."""
    if hasattr(experts, "local_experts"):
        return list(experts.local_experts)
    if not hasattr(experts, "linear_fc1"):
        raise InstanceError(
            f"{type(experts).__name__} keeps all experts in one matrix; use sequential"
            " or Transformer Engine grouped experts"
        )
    linears = {"fc1": experts.linear_fc1, "fc2": experts.linear_fc2}
    return [
        nn.ParameterDict(
            {
                f"{name}_{kind}": getattr(linear, f"{kind}{slot}")
                for name, linear in linears.items()
                for kind in ("weight", "bias")
                if getattr(linear, f"{kind}{slot}", None) is not None
            }
        )
        for slot in range(registry.slots_per_rank)
    ]


def _expert_of_slot(
    registry: ExpertRegistry, layer: int, device: torch.device
) -> torch.Tensor:
    """Return the logical expert in each slot, int64 [P], live."""
    experts_E = torch.arange(registry.n_experts, device=device)
    return torch.argsort(registry.physical_ids(layer, experts_E))
