"""Where the windows come from: the model's own rollouts, or recorded routes.

`rollouts` ends with what the planner needs, lengths and routes; `samples`, which knows
what each token counts, may run while the planner searches.

Axis letters: N samples of this rank, L MoE layers, E experts, T tokens, K top-k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from rpopt.counter import generator, key
from rpopt.errors import FileFormatError
from rpopt.io.reference import data_dir
from rpopt.online.messages import message_device
from rpopt.online.samples import LocalSamples
from rpopt.records import IntArray
from rpopt.trainer.config import Grpo, Replay
from rpopt.trainer.grpo import advantages, clipped_loss, to_samples, with_old_logprobs
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import Parallel, sum_over
from rpopt.trainer.rollout import Rollout, roll_out
from rpopt.trainer.router import check_routes, count_visits
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.step import Cell, Objective, Sample, weighted_loss

_PROMPT, _RESPONSE, _TOKENS = range(3)  # streams of the counter


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A window of this rank, ready to be dealt.

    Parameters
    ----------
    samples
        The rollouts with what their tokens count.
    reward
        Mean reward of the whole window; None where there is none.
    """

    samples: list[Sample]
    reward: float | None = None


class Windows(Protocol):
    """A source of windows; all ranks call it."""

    passes: int
    objective: Objective

    def rollouts(self, step: int) -> list[Rollout]:
        """Return this rank's part of a window."""
        ...

    def scored(self, rollouts: Sequence[Rollout]) -> Scored:
        """Return the part with what its tokens count."""
        ...

    def prepared(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Return dealt cells with all that the objective asks for."""
        ...


class OwnRollouts:
    """Answers of the model to prompts of a task."""

    def __init__(self, grpo: Grpo, model: Model, groups: Parallel, seed: int) -> None:
        self._grpo, self._model, self._groups, self._seed = grpo, model, groups, seed
        self.passes = grpo.passes
        self.objective: Objective = partial(clipped_loss, clip=grpo.clip)

    def rollouts(self, step: int) -> list[Rollout]:
        """Answer this rank's prompts."""
        task = self._grpo.task
        prompts: list[IntArray] = []
        keys = []
        for i in own_part(self._grpo.prompts, self._groups):
            prompt = task.prompt(self._seed, _PROMPT, step, i)
            for answer in range(self._grpo.answers):
                prompts.append(prompt)
                keys.append(key(self._seed, _RESPONSE, step, i, answer))
        return roll_out(
            self._model,
            prompts,
            keys,
            end=task.end,
            max_response=self._grpo.max_response,
            temperature=self._grpo.temperature,
            group=self._groups.ep_group,
        )

    def scored(self, rollouts: Sequence[Rollout]) -> Scored:
        """Weigh tokens by group-relative advantages."""
        rewards = [self._grpo.task.reward(r.prompt, r.response) for r in rollouts]
        reward_PG = np.array(rewards, dtype=np.float64).reshape(-1, self._grpo.answers)
        num_tokens = sum(rollout.response.size for rollout in rollouts)
        reward, count, tokens = _sum_over(
            [sum(rewards), len(rewards), num_tokens], self._groups
        )
        advantage_N = advantages(reward_PG).ravel()
        return Scored(
            samples=to_samples(rollouts, advantage_N, int(tokens)),
            reward=reward / count,
        )

    def prepared(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Add the old log-probabilities."""
        return with_old_logprobs(self._model, cells, self._groups)


class RecordedRoutes:
    """Generations of another model: their routes drive this one, on random tokens."""

    passes = 1
    objective: Objective = staticmethod(weighted_loss)

    def __init__(
        self, replay: Replay, shape: ModelShape, groups: Parallel, seed: int
    ) -> None:
        self._replay, self._shape, self._groups = replay, shape, groups
        self._seed = seed
        self._generations = read_generations(replay.routes, shape)

    def rollouts(self, step: int) -> list[Rollout]:
        """Draw this rank's generations."""
        return [
            self._rollout(step, i) for i in own_part(self._replay.samples, self._groups)
        ]

    def _rollout(self, step: int, i: int) -> Rollout:
        rng = generator(self._seed, _TOKENS, step, i)
        routes_TLK = self._generations[rng.integers(len(self._generations))]
        routes_TLK = routes_TLK[: self._replay.max_length]
        tokens = rng.integers(self._shape.vocab_size, size=len(routes_TLK) + 1)
        return Rollout(tokens=tokens, prompt_tokens=1, routes_TLK=routes_TLK)

    def scored(self, rollouts: Sequence[Rollout]) -> Scored:
        """Let every token count the same."""
        own = sum(rollout.response.size for rollout in rollouts)
        (total,) = _sum_over([own], self._groups)
        samples = to_samples(rollouts, np.ones(len(rollouts)), int(total))
        return Scored(samples=samples)

    def prepared(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Nothing to add."""
        return cells


def read_generations(path: str, shape: ModelShape) -> list[IntArray]:
    """Return the routes of every generation of a file, [T, L, K] each.

    Raises
    ------
    FileFormatError
        When the file is missing or holds something else.
    InstanceError
        When the routes are not for this model.
    """
    full = Path(path) if Path(path).is_absolute() else data_dir() / path
    try:
        with np.load(full, allow_pickle=False) as archive:
            topk, offsets = archive["topk"], archive["offsets"]
    except (OSError, ValueError, KeyError) as error:
        raise FileFormatError(
            f"{full} cannot be read: {error}; it needs 'topk' and 'offsets'"
        ) from error
    routes = check_routes(topk, shape, num_tokens=len(topk), name=str(full))
    return np.split(routes.astype(topk.dtype), offsets[1:-1])


def histograms(rollouts: Sequence[Rollout], shape: ModelShape) -> LocalSamples:
    """Return what the planner needs to know about a part of a window."""
    demand = [count_visits(rollout.routes_TLK, shape) for rollout in rollouts]
    size_NLE = (len(rollouts), shape.num_moe_layers, shape.num_experts)
    demand_NLE = np.array(demand, dtype=np.int32).reshape(size_NLE)
    return LocalSamples(
        length_N=np.array([len(r.routes_TLK) for r in rollouts], dtype=np.int64),
        demand_NLE=demand_NLE,
        top_k=shape.top_k,
    )


def own_part(count: int, groups: Parallel) -> range:
    """Return which of `count` things are this rank's: as equal as can be."""
    rank, dp = groups.rank, groups.topology.dp
    return range(rank * count // dp, (rank + 1) * count // dp)


def _sum_over(values: Sequence[float], groups: Parallel) -> list[float]:
    if groups.world is None:
        return list(values)
    device = message_device(groups.world)
    total = torch.tensor(values, dtype=torch.float64, device=device)
    sum_over([total], groups.world)
    return [float(value) for value in total]
