"""Grouped-query attention with rotary embeddings, over packed samples or a cache.

What a token may see is decided by the `Context`, so the layers are the same in training
and rollout.

Axis letters: T tokens of a micro-batch, B sequences decoded together, D hidden, H query
heads, G key and value heads, W head width.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rpopt.trainer.shape import ModelShape


class Context(Protocol):
    """The tokens of one forward pass: their positions and what each may see."""

    positions_T: Tensor

    def attend(self, layer: int, q_THW: Tensor, k_TGW: Tensor, v_TGW: Tensor) -> Tensor:
        """Return the attention output of every token, [T, H, W]."""
        ...


class PackedSamples:
    """Samples one after another in one micro-batch; none sees another.

    Parameters
    ----------
    lengths
        Tokens of each sample, in order.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu"):
        self.lengths = list(lengths)
        each = [torch.arange(length, device=device) for length in self.lengths]
        self.positions_T = torch.cat(each)

    def attend(self, layer: int, q_THW: Tensor, k_TGW: Tensor, v_TGW: Tensor) -> Tensor:
        """Attend causally within each sample."""
        parts = [torch.split(part, self.lengths) for part in (q_THW, k_TGW, v_TGW)]
        outputs = [_causal(q, k, v) for q, k, v in zip(*parts, strict=True)]
        return torch.cat(outputs)


class DecodeCache:
    """Keys and values of B sequences that grow by one token in every forward pass.

    They carry no gradient.

    Parameters
    ----------
    shape
        The model.
    num_sequences, max_tokens
        Sequences, and the most tokens each may reach.
    """

    def __init__(
        self,
        shape: ModelShape,
        num_sequences: int,
        max_tokens: int,
        device: torch.device | str = "cpu",
    ):
        size = (num_sequences, shape.num_kv_heads, max_tokens, shape.head_dim)
        self._cache = [
            (torch.zeros(size, device=device), torch.zeros(size, device=device))
            for _ in range(shape.num_layers)
        ]
        self.positions_T = torch.zeros(num_sequences, dtype=torch.int64, device=device)
        self._length = 0

    def advance(self) -> None:
        """Go on to the next position, after a forward pass."""
        self._length += 1
        self.positions_T = self.positions_T + 1

    def attend(self, layer: int, q_THW: Tensor, k_TGW: Tensor, v_TGW: Tensor) -> Tensor:
        """Attend to all tokens of the own sequence so far."""
        end = self._length + 1
        keys, values = self._cache[layer]
        keys[:, :, self._length] = k_TGW.detach()
        values[:, :, self._length] = v_TGW.detach()
        output = F.scaled_dot_product_attention(
            q_THW.unsqueeze(2), keys[:, :, :end], values[:, :, :end], enable_gqa=True
        )
        return output.squeeze(2)


class Attention(nn.Module):
    """Projections, rotary embedding and attention of one layer."""

    def __init__(self, shape: ModelShape, layer: int):
        super().__init__()
        self._layer, self._width, self._theta = layer, shape.head_dim, shape.rope_theta
        queries, keys = shape.num_heads * self._width, shape.num_kv_heads * self._width
        self._widths = [queries, keys, keys]
        self.qkv = nn.Linear(shape.hidden, queries + 2 * keys, bias=False)
        self.out = nn.Linear(queries, shape.hidden, bias=False)

    def forward(self, hidden_TD: Tensor, context: Context) -> Tensor:
        """Return the output of every token, [T, D]."""
        q, k, v = (
            part.unflatten(1, (-1, self._width))
            for part in self.qkv(hidden_TD).split(self._widths, dim=1)
        )
        cos, sin = rotary(context.positions_T, self._width, self._theta)
        q, k = _turn(q, cos, sin), _turn(k, cos, sin)
        output: Tensor = self.out(context.attend(self._layer, q, k, v).flatten(1))
        return output


def rotary(positions_T: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, [T, 1, W / 2] each."""
    half = torch.arange(width // 2, device=positions_T.device)
    frequency = theta ** (-half / (width // 2))
    angle = (positions_T[:, None] * frequency)[:, None]
    return angle.cos(), angle.sin()


def _turn(x_THW: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x_THW.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _causal(q_LHW: Tensor, k_LGW: Tensor, v_LGW: Tensor) -> Tensor:
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q_LHW, k_LGW, v_LGW))
    output = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return output.squeeze(0).transpose(0, 1)
