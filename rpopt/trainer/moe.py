"""The Mixture-of-Experts layer: route, send, compute, bring back, weigh.

Axis letters: T tokens, D hidden, K top-k, C = T K token copies, M copies received,
S local slots, F inner width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rpopt.trainer.dispatch import Dispatch, Group
from rpopt.trainer.router import Router, Routing
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.slots import Slots


class GatedMLP(nn.Module):
    """A dense gated MLP."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the output of every token."""
        output: Tensor = self.down(_gate(self.gate_up(x_TD)))
        return output


class Experts(nn.Module):
    """The experts of this rank's slots, in two fused tensors."""

    def __init__(self, shape: ModelShape, num_slots: int):
        super().__init__()
        hidden, inner = shape.hidden, shape.moe_intermediate
        self.gate_up_SDF = nn.Parameter(torch.empty(num_slots, hidden, 2 * inner))
        self.down_SFD = nn.Parameter(torch.empty(num_slots, inner, hidden))

    def forward(self, rows_MD: Tensor, received_S: Tensor) -> Tensor:
        """Return the experts' outputs of rows that are ordered by slot."""
        ends_S = received_S.cumsum(0).to(torch.int32)
        inner_MF = _gate(_grouped(rows_MD, self.gate_up_SDF, ends_S))
        return _grouped(inner_MF, self.down_SFD, ends_S)


class MoELayer(nn.Module):
    """Router, experts of an EP group and an optional shared expert.

    Parameters
    ----------
    shape
        The model.
    layer
        Which MoE layer this is.
    slots
        Where the experts sit.
    group
        The EP group; None when this rank holds every expert.
    """

    def __init__(self, shape: ModelShape, layer: int, slots: Slots, group: Group):
        super().__init__()
        self._layer, self._slots, self._group = layer, slots, group
        self._num_experts = shape.num_experts
        self.router = Router(shape)
        self.experts = Experts(shape, len(slots.local_experts(layer)))
        self.shared = None
        if shape.shared_intermediate:
            self.shared = GatedMLP(shape.hidden, shape.shared_intermediate)

    def forward(self, x_TD: Tensor, replay_TK: Tensor | None) -> tuple[Tensor, Routing]:
        """Return the output of every token, and how the tokens were routed."""
        routing = self.router(x_TD, replay_TK)
        slot_TK = self._slots.physical_ids(self._layer, routing.expert_TK)
        dispatch = Dispatch(slot_TK.flatten(), self._num_experts, self._group)
        copies_CD = x_TD.unsqueeze(1).expand(*slot_TK.shape, -1).flatten(0, 1)
        rows_MD = self.experts(dispatch.forward(copies_CD), dispatch.received_S)
        copies_TKD = dispatch.back(rows_MD).view(*slot_TK.shape, x_TD.shape[1])
        output_TD = (copies_TKD * routing.weight_TK.unsqueeze(2)).sum(dim=1)
        if self.shared is not None:
            output_TD = output_TD + self.shared(x_TD)
        return output_TD, routing


def _gate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _grouped(rows: Tensor, weight: Tensor, ends_S: Tensor) -> Tensor:
    if not rows.shape[0]:  # grouped_mm refuses to differentiate an empty product
        return rows @ weight[0]
    return F.grouped_mm(rows, weight, offs=ends_S)
