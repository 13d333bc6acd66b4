"""Rollouts are what the model would write, whoever else is decoded beside them."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rpopt.counter import key
from rpopt.errors import InstanceError
from rpopt.trainer.attention import PackedSamples
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import parallel
from rpopt.trainer.rollout import Rollout, choose, roll_out
from rpopt.trainer.slots import PlacedSlots
from tests.distributed.ranks import results_of
from tests.trainer.cases import identity, local_model, small_shape

SHAPE = small_shape()
END = 12
PROMPTS = [np.array(p) for p in ([1, 2, 3], [4], [5, 6, 7, 8, 9], [1, 2, 3])]
KEYS = [key(0, i) for i in range(len(PROMPTS))]


def decode(model: Model, which: list[int], **changes: Any) -> list[Rollout]:
    settings = {"end": END, "max_response": 6, "temperature": 1.0, "group": None}
    return roll_out(
        model,
        [PROMPTS[i] for i in which],
        [KEYS[i] for i in which],
        **{**settings, **changes},
    )


def test_routes_are_those_of_the_packed_pass() -> None:
    model = local_model(SHAPE)
    for prompt, rollout in zip(PROMPTS, decode(model, [0, 1, 2, 3]), strict=True):
        assert np.array_equal(rollout.prompt, prompt)
        assert rollout.response.size == 6 or rollout.response[-1] == END
        length = rollout.tokens.size - 1
        inputs = torch.as_tensor(rollout.tokens[:-1])
        packed = model(inputs, PackedSamples([length]))
        assert np.array_equal(packed.routes_TLK.numpy(), rollout.routes_TLK)


def test_greedy_decoding_takes_the_best_token_of_the_packed_pass() -> None:
    model = local_model(SHAPE)
    for rollout in decode(model, [0, 1, 2], temperature=0.0):
        inputs = torch.as_tensor(rollout.tokens[:-1])
        packed = model(inputs, PackedSamples([inputs.numel()]))
        best = packed.logits_TV.argmax(dim=1)[rollout.prompt_tokens - 1 :]
        assert best.tolist() == rollout.response.tolist()


def test_a_response_depends_on_its_key_and_not_on_its_company() -> None:
    model = local_model(SHAPE)
    together = decode(model, [0, 1, 2, 3])
    for i, rollout in enumerate(together):
        (alone,) = decode(model, [i])
        assert np.array_equal(alone.tokens, rollout.tokens)
        assert np.array_equal(alone.routes_TLK, rollout.routes_TLK)
    assert not np.array_equal(together[0].tokens, together[3].tokens)


def test_a_response_ends_with_the_first_end_mark() -> None:
    model = local_model(SHAPE)
    rollouts = [r for end in range(13) for r in decode(model, [0, 1, 2], end=end)]
    lengths = {rollout.response.size for rollout in rollouts}
    assert min(lengths) < 6
    assert max(lengths) == 6
    for end in range(13):
        for rollout in decode(model, [0, 1, 2], end=end):
            assert end not in rollout.response[:-1]


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, -torch.inf])
    uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    tokens = choose(logits.expand(1000, 4), uniform, temperature=2.0)
    share = tokens.bincount(minlength=4) / 1000
    torch.testing.assert_close(share, (logits / 2).softmax(0), atol=1e-3, rtol=0)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InstanceError, match="prompt is empty"):
        roll_out(
            local_model(SHAPE),
            [np.array([], dtype=np.int64)],
            [0],
            end=END,
            max_response=2,
            temperature=1.0,
            group=None,
        )


def decode_on_ranks(ep: int) -> list[Any]:
    groups = parallel(ep)
    slots = PlacedSlots(identity(SHAPE, ep), groups.ep_rank)
    model = Model(SHAPE, slots, seed=7, group=groups.ep_group)
    rank, size = dist.get_rank(), dist.get_world_size()
    own = list(range(len(PROMPTS) - 1))[rank::size]  # three prompts: some rank has none
    rollouts = decode(model, own, group=groups.ep_group)
    return [
        (i, r.tokens.tolist(), r.routes_TLK.tolist())
        for i, r in zip(own, rollouts, strict=True)
    ]


@pytest.mark.dist
@pytest.mark.parametrize(("world", "ep"), [(2, 2), (4, 2), (4, 4)])
def test_ranks_with_unequal_work_and_none_decode_together(world: int, ep: int) -> None:
    model = Model(SHAPE, PlacedSlots(identity(SHAPE), 0), seed=7)
    alone = decode(model, [0, 1, 2])
    expected = [(r.tokens.tolist(), r.routes_TLK.tolist()) for r in alone]
    found = sorted(sum(results_of(decode_on_ranks, world, ep), []))
    assert [i for i, *_ in found] == [0, 1, 2]
    assert [(tokens, routes) for _, tokens, routes in found] == expected
