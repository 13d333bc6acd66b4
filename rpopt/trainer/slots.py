"""Which logical expert sits in which slot; the model asks after top-k, before dispatch.

Axis letters: L MoE layers, E experts (also slots), T tokens, K top-k.
"""

from typing import Protocol

import torch
from torch import Tensor

from rpopt.plans import Placement


class Slots(Protocol):
    """What the model asks about the experts' slots."""

    def physical_ids(self, layer: int, logical_ids: Tensor) -> Tensor:
        """Return the slots of logical experts of a layer."""
        ...

    def local_experts(self, layer: int) -> list[int]:
        """Return the logical experts of this rank's slots, in slot order."""
        ...


class PlacedSlots:
    """The slots of a placement, as one EP rank sees them.

    Parameters
    ----------
    placement
        The placement in force.
    ep_rank
        This rank among the EP ranks of the placement.
    """

    def __init__(self, placement: Placement, ep_rank: int, device: str = "cpu"):
        self.placement, self._ep_rank = placement, ep_rank
        self._slot_LE = torch.tensor(placement.slot_LE, device=device)

    def physical_ids(self, layer: int, logical_ids: Tensor) -> Tensor:
        """Return the slots of logical experts of a layer."""
        return self._slot_LE[layer][logical_ids]

    def local_experts(self, layer: int) -> list[int]:
        """Return the logical experts of this rank's slots, in slot order."""
        expert_E = self.placement.expert_of_slot_LE[layer]
        per_rank = expert_E.size // self.placement.num_ep_ranks
        start = self._ep_rank * per_rank
        return [int(expert) for expert in expert_E[start : start + per_rank]]
