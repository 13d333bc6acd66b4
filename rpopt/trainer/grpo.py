"""Group-relative policy optimisation (Shao et al., "DeepSeekMath", 2024).

A sample's advantage is its reward among the answers to the same prompt. Every response
token of the window counts the same (Yu et al., "DAPO", 2025), so the normaliser is one
number for all ranks and cells, and there is no reference model.

Axis letters: P prompts, G answers to each, N = P G samples, T tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rpopt.trainer.model import Model, Output
from rpopt.trainer.parallel import Parallel
from rpopt.trainer.rollout import Rollout
from rpopt.trainer.step import (
    Cell,
    Sample,
    check_cells,
    replay,
    token_logprobs,
    weights,
)

_SMALLEST_STD = 1e-6  # groups of equal rewards have advantage 0
FloatArray = npt.NDArray[np.float64]


def advantages(reward_PG: FloatArray) -> FloatArray:
    """Return rewards less their group's mean, in its standard deviations, [P, G]."""
    centred = reward_PG - reward_PG.mean(axis=1, keepdims=True)
    return centred / (centred.std(axis=1, keepdims=True) + _SMALLEST_STD)


def to_samples(
    rollouts: Sequence[Rollout], advantage_N: FloatArray, num_response_tokens: int
) -> list[Sample]:
    """Return rollouts as samples to train on, whose responses alone count.

    Parameters
    ----------
    num_response_tokens
        Of the whole window, over all ranks.
    """
    return [
        _sample(rollout, float(advantage) / num_response_tokens)
        for rollout, advantage in zip(rollouts, advantage_N, strict=True)
    ]


def _sample(rollout: Rollout, weight: float) -> Sample:
    weight_T = np.zeros(rollout.tokens.size - 1)
    weight_T[rollout.prompt_tokens - 1 :] = weight
    return Sample(
        tokens=rollout.tokens, routes_TLK=rollout.routes_TLK, weight_T=weight_T
    )


@torch.no_grad()
def with_old_logprobs(
    model: Model, cells: Sequence[Cell], groups: Parallel
) -> list[list[Sample]]:
    """Return the cells with log-probabilities under the weights of now.

    The pass runs the cells of the training step: it is planned like it.

    Raises
    ------
    InstanceError
        On all ranks, when the cells of one cannot be run; see `train_step`.
    """
    check_cells(cells, model, groups)
    return [_with_old_logprobs(model, cell) for cell in cells]


def _with_old_logprobs(model: Model, cell: Cell) -> list[Sample]:
    logprob_T = token_logprobs(replay(model, cell), cell).cpu().numpy()
    ends = np.cumsum([sample.length for sample in cell])[:-1]
    parts = np.split(logprob_T, ends)
    return [
        replace(sample, old_logprob_T=part)
        for sample, part in zip(cell, parts, strict=True)
    ]


def clipped_loss(output: Output, cell: Cell, *, clip: float) -> Tensor:
    """Return a cell's part of the clipped objective, negated.

    Parameters
    ----------
    clip
        A token whose probability has changed by more than this factor, in the
        direction that its advantage wants, has no gradient any more.
    """
    new_T = token_logprobs(output, cell)
    old = np.concatenate([_old(sample) for sample in cell])
    ratio_T = (new_T - torch.as_tensor(old, device=new_T.device)).exp()
    weight_T = weights(output, cell)
    clipped_T = ratio_T.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio_T * weight_T, clipped_T * weight_T).sum()


def _old(sample: Sample) -> npt.NDArray[np.floating]:
    assert sample.old_logprob_T is not None, "with_old_logprobs comes first"
    return sample.old_logprob_T
