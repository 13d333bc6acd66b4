"""The router: which experts a token visits, live or replayed, always in logical ids.

Axis letters: T tokens, E experts, K top-k, L MoE layers, D hidden.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rpopt.errors import InstanceError
from rpopt.records import IntArray
from rpopt.trainer.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Where the tokens of one layer go.

    Parameters
    ----------
    expert_TK
        Logical ids of the experts that each token visits, int64.
    weight_TK
        What each of them counts.
    share_TE
        Normalised scores of all experts, for the auxiliary loss.
    """

    expert_TK: Tensor
    weight_TK: Tensor
    share_TE: Tensor


class Router(nn.Module):
    """Scores, choice and weights.

    `selection_bias_E` shifts the choice and not the weights. It is no parameter: the
    trainer moves it against the load (Wang et al., "Auxiliary-loss-free load balancing
    strategy for Mixture-of-Experts", 2024).
    """

    selection_bias_E: Tensor

    def __init__(self, shape: ModelShape):
        super().__init__()
        self._shape = shape
        self.weight = nn.Parameter(torch.empty(shape.num_experts, shape.hidden))
        self.register_buffer("selection_bias_E", torch.zeros(shape.num_experts))

    def forward(self, hidden_TD: Tensor, replay_TK: Tensor | None = None) -> Routing:
        """Route tokens; with `replay_TK` to these experts, by the live scores."""
        logits_TE = F.linear(hidden_TD, self.weight)
        if self._shape.scoring == "softmax":
            score_TE = logits_TE.softmax(dim=1)
            share_TE = score_TE
        else:
            score_TE = logits_TE.sigmoid()
            share_TE = score_TE / score_TE.sum(dim=1, keepdim=True)
        expert_TK = self.choose(score_TE.detach()) if replay_TK is None else replay_TK
        chosen_TK = score_TE.gather(1, expert_TK)
        weight_TK = chosen_TK / chosen_TK.sum(dim=1, keepdim=True)
        return Routing(expert_TK=expert_TK, weight_TK=weight_TK, share_TE=share_TE)

    def choose(self, score_TE: Tensor) -> Tensor:
        """Return the experts of the largest biased scores, [T, K]."""
        biased_TE = score_TE + self.selection_bias_E
        if self._shape.num_groups > 1:
            biased_TE = biased_TE.masked_fill(~self._open(biased_TE), -torch.inf)
        return biased_TE.topk(self._shape.top_k, dim=1).indices

    def _open(self, biased_TE: Tensor) -> Tensor:
        """Return whether an expert is in a group that its token chose, bool [T, E].

        A group counts as much as its two best experts.
        """
        shape = self._shape
        by_group = biased_TE.view(len(biased_TE), shape.num_groups, -1)
        best = by_group.topk(min(2, by_group.shape[2]), dim=2).values.sum(dim=2)
        chosen = best.topk(shape.top_groups, dim=1).indices
        is_open = torch.zeros_like(best, dtype=torch.bool).scatter(1, chosen, True)
        return is_open.repeat_interleave(by_group.shape[2], dim=1)


def count_visits(routes_TLK: IntArray, shape: ModelShape) -> npt.NDArray[np.int64]:
    """Return how many token copies each expert of each layer receives, [L, E]."""
    size_LE = (shape.num_moe_layers, shape.num_experts)
    first_L = np.arange(shape.num_moe_layers) * shape.num_experts
    visited = (routes_TLK + first_L[:, None]).ravel()
    return np.bincount(visited, minlength=first_L.size * size_LE[1]).reshape(size_LE)


def check_routes(
    routes_TLK: IntArray, shape: ModelShape, *, num_tokens: int, name: str = "routes"
) -> npt.NDArray[np.int64]:
    """Return recorded routes as int64 [T, L, K], or say why they cannot be replayed.

    Raises
    ------
    InstanceError
        When a layer or token is missing, K is another, an id is out of range, or a
        token visits an expert twice.
    """
    routes = np.asarray(routes_TLK)
    needed = (num_tokens, shape.num_moe_layers, shape.top_k)
    if routes.shape != needed:
        raise InstanceError(
            f"{name} have shape {routes.shape}; this model needs {needed}: tokens,"
            " MoE layers, experts per token. Record all of them at rollout"
        )
    if not np.issubdtype(routes.dtype, np.integer):
        raise InstanceError(f"{name} hold {routes.dtype}; expert ids are whole numbers")
    wrong = (routes < 0) | (routes >= shape.num_experts)
    if wrong.any():
        token, layer, _ = np.argwhere(wrong)[0]
        raise InstanceError(
            f"{name}: token {token}, MoE layer {layer} visits expert"
            f" {routes[wrong][0]}; ids are 0 to {shape.num_experts - 1}"
        )
    ordered = np.sort(routes, axis=2)
    twice = (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)
    if twice.any():
        token, layer = np.argwhere(twice)[0]
        raise InstanceError(
            f"{name}: token {token} visits an expert of MoE layer {layer} twice"
        )
    return routes.astype(np.int64)
