"""Rollout: the model answers prompts token by token, and records every token's routes.

All sequences start together; prompts are read one token per pass, as answers are
written. The ranks of an EP group meet in every layer, so they all make as many passes
as the one that takes longest.

Axis letters: B sequences, T tokens, L MoE layers, K top-k, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from rpopt.counter import draws
from rpopt.errors import InstanceError
from rpopt.records import IntArray
from rpopt.trainer.attention import DecodeCache
from rpopt.trainer.dispatch import Group
from rpopt.trainer.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One prompt and what the model made of it.

    Parameters
    ----------
    tokens
        T + 1 token ids, prompt and response.
    prompt_tokens
        Tokens of the prompt.
    routes_TLK
        Experts that all tokens but the last visited, logical ids.
    """

    tokens: IntArray
    prompt_tokens: int
    routes_TLK: IntArray

    @property
    def prompt(self) -> IntArray:
        """Token ids of the prompt."""
        return self.tokens[: self.prompt_tokens]

    @property
    def response(self) -> IntArray:
        """Token ids that the model wrote."""
        return self.tokens[self.prompt_tokens :]


@torch.no_grad()
def roll_out(
    model: Model,
    prompts: Sequence[IntArray],
    keys: Sequence[int],
    *,
    end: int,
    max_response: int,
    temperature: float,
    group: Group,
) -> list[Rollout]:
    """Answer prompts; every rank of the EP group calls it, with or without prompts.

    Parameters
    ----------
    prompts
        Token ids; the same prompt may come several times.
    keys
        What the response of each prompt is drawn from (`rpopt.counter.key`): it
        depends on prompt, weights and key, and not on what else is decoded.
    end
        The token that ends a response.
    max_response
        Tokens after which a response is cut off.
    temperature
        Scores are divided by it; 0 takes the best token.
    group
        The EP group; None when this rank holds every expert.
    """
    if any(prompt.size == 0 for prompt in prompts):
        raise InstanceError("a prompt is empty; begin with at least one token")
    device = model.head.weight.device
    prompt_B = np.array([prompt.size for prompt in prompts], dtype=np.int64)
    width = _most(int(prompt_B.max(initial=0)) + max_response, group, device)
    token_BT = torch.full((len(prompts), width), end, device=device)
    uniform_BT = torch.zeros(token_BT.shape, dtype=torch.float64)
    for i, (prompt, key) in enumerate(zip(prompts, keys, strict=True)):
        token_BT[i, : prompt.size] = torch.as_tensor(prompt, device=device)
        uniform_BT[i] = torch.from_numpy(draws(key, width) / 2.0**64)
    uniform_BT = uniform_BT.to(device)
    first_B = torch.as_tensor(prompt_B, device=device)
    is_open_B = torch.ones_like(first_B, dtype=torch.bool)
    cache = DecodeCache(model.shape, len(prompts), width, device)
    routes = []
    for t in range(width - 1):
        output = model(token_BT[:, t], cache)
        cache.advance()
        routes.append(output.routes_TLK)
        drawn_B = choose(output.logits_TV, uniform_BT[:, t + 1], temperature)
        is_written_B = is_open_B & (first_B <= t + 1)
        token_BT[:, t + 1] = torch.where(is_written_B, drawn_B, token_BT[:, t + 1])
        is_last_B = (drawn_B == end) | (first_B + max_response == t + 2)
        is_open_B &= ~(is_written_B & is_last_B)
        if not _most(int(is_open_B.any()), group, device):
            break
    routes_BTLK = torch.stack(routes, dim=1).to(torch.int16).cpu().numpy()
    return [
        _rollout(tokens, routes_TLK, prompt.size, end, max_response)
        for tokens, routes_TLK, prompt in zip(
            token_BT.cpu().numpy(), routes_BTLK, prompts, strict=True
        )
    ]


def choose(logits_BV: Tensor, uniform_B: Tensor, temperature: float) -> Tensor:
    """Return one token per sequence: the quantile of a uniform number in [0, 1)."""
    if temperature == 0:
        return logits_BV.argmax(dim=1)
    share_BV = (logits_BV.double() / temperature).softmax(dim=1)
    below_B = (share_BV.cumsum(dim=1) <= uniform_B[:, None]).sum(dim=1)
    return below_B.clamp(max=logits_BV.shape[1] - 1)


def _rollout(
    token_T: npt.NDArray[np.int64],
    routes_TLK: npt.NDArray[np.int16],
    prompt_tokens: int,
    end: int,
    max_response: int,
) -> Rollout:
    written = token_T[prompt_tokens : prompt_tokens + max_response]
    ends = np.flatnonzero(written == end)
    length = prompt_tokens + (int(ends[0]) + 1 if ends.size else written.size)
    return Rollout(
        tokens=token_T[:length].copy(),
        prompt_tokens=prompt_tokens,
        routes_TLK=routes_TLK[: length - 1].copy(),
    )


def _most(value: int, group: Group, device: torch.device) -> int:
    """Return the largest value of the group."""
    if group is None:
        return value
    tensor = torch.tensor(value, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    return int(tensor)
