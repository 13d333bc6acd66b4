"""The model: a decoder-only transformer whose weights do not depend on who holds them.

Axis letters: T tokens, D hidden, V vocabulary, L MoE layers, K top-k.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rpopt.counter import key
from rpopt.trainer.attention import Attention, Context
from rpopt.trainer.dispatch import Group
from rpopt.trainer.moe import GatedMLP, MoELayer
from rpopt.trainer.router import Routing
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.slots import Slots

_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a forward pass returns.

    Parameters
    ----------
    logits_TV
        Scores of the next token.
    routings
        How each MoE layer routed the tokens.
    """

    logits_TV: Tensor
    routings: Sequence[Routing]

    @property
    def routes_TLK(self) -> Tensor:
        """The experts that were visited, logical ids."""
        return torch.stack([routing.expert_TK for routing in self.routings], dim=1)


class Block(nn.Module):
    """Attention, then experts or a dense MLP, each behind a norm."""

    def __init__(self, shape: ModelShape, layer: int, mlp: nn.Module):
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.attention = Attention(shape, layer)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.mlp = mlp

    def attend(self, x_TD: Tensor, context: Context) -> Tensor:
        """Return the residual stream after attention."""
        output: Tensor = x_TD + self.attention(self.attention_norm(x_TD), context)
        return output


class Model(nn.Module):
    """A decoder-only Mixture-of-Experts transformer.

    Parameters
    ----------
    shape
        Its sizes.
    slots
        Where the experts sit.
    group
        The EP group; None when this rank holds every expert.
    seed
        Same seed, same weights, whatever the placement and the EP size.
    """

    def __init__(
        self, shape: ModelShape, slots: Slots, *, seed: int, group: Group = None
    ):
        super().__init__()
        self.shape, self._slots = shape, slots
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden)
        dense = shape.num_dense_layers
        mlps: list[nn.Module] = [
            GatedMLP(shape.hidden, shape.dense_intermediate) for _ in range(dense)
        ]
        self.moe_layers = [
            MoELayer(shape, layer, slots, group)
            for layer in range(shape.num_moe_layers)
        ]
        mlps += self.moe_layers
        self.blocks = nn.ModuleList(
            Block(shape, layer, mlp) for layer, mlp in enumerate(mlps)
        )
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        self._initialise(seed)

    def forward(
        self, token_T: Tensor, context: Context, routes_TLK: Tensor | None = None
    ) -> Output:
        """Return logits and routes; with `routes_TLK`, tokens visit those experts."""
        x_TD = self.embedding(token_T)
        routings: list[Routing] = []
        for block in self._blocks():
            x_TD = block.attend(x_TD, context)
            normed = block.mlp_norm(x_TD)
            if isinstance(block.mlp, MoELayer):
                layer = len(routings)
                replay = None if routes_TLK is None else routes_TLK[:, layer]
                output, routing = block.mlp(normed, replay)
                routings.append(routing)
            else:
                output = block.mlp(normed)
            x_TD = x_TD + output
        return Output(logits_TV=self.head(self.norm(x_TD)), routings=routings)

    def _blocks(self) -> Iterator[Block]:
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def expert_parameters(self) -> list[nn.Parameter]:
        """Return the fused expert tensors, slots first."""
        return [p for moe in self.moe_layers for p in moe.experts.parameters()]

    def dense_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that every rank holds."""
        own = {id(parameter) for parameter in self.expert_parameters()}
        return [p for p in self.parameters() if id(p) not in own]

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Draw every tensor, and every expert by its logical id, from its own seed."""
        for index, parameter in enumerate(self.dense_parameters()):
            if parameter.dim() > 1:
                _draw(parameter, key(seed, 0, index))
        for layer, moe in enumerate(self.moe_layers):
            for index, fused in enumerate(moe.experts.parameters()):
                for slot, expert in enumerate(self._slots.local_experts(layer)):
                    _draw(fused[slot], key(seed, 1, layer, index, expert))


def _draw(tensor: Tensor, seed: int) -> None:
    source = torch.Generator().manual_seed(seed % 2**63)
    tensor.copy_(torch.randn(tensor.shape, generator=source) * _STD)
