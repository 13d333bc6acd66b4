from dataclasses import replace

import numpy as np
import pytest
import torch

from rpopt.topology import Topology
from rpopt.trainer.grpo import (
    advantages,
    clipped_loss,
    to_samples,
    with_old_logprobs,
)
from rpopt.trainer.parallel import Parallel
from rpopt.trainer.rollout import Rollout
from rpopt.trainer.step import Sample, filler, replay, weighted_loss
from tests.trainer.cases import local_model, small_shape

ALONE = Parallel(topology=Topology(dp=1, ep=1), rank=0)
SHAPE = small_shape()


def rollouts(lengths: tuple[int, ...] = (4, 7, 3)) -> list[Rollout]:
    rng = np.random.default_rng(0)
    routes = [
        rng.permuted(np.tile(np.arange(8), (n - 1, 2, 1)), axis=2)[:, :, :2]
        for n in lengths
    ]
    return [
        Rollout(tokens=rng.integers(13, size=n), prompt_tokens=2, routes_TLK=r)
        for n, r in zip(lengths, routes, strict=True)
    ]


def cell() -> list[Sample]:
    return to_samples(rollouts(), np.array([1.0, -2.0, 0.5]), 8)


def test_advantages_are_relative_to_the_group() -> None:
    found = advantages(np.array([[1.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5]]))
    np.testing.assert_allclose(found, [[1, -1, 1, -1], [0, 0, 0, 0]], atol=1e-5)


def test_only_the_response_counts_and_every_token_of_it_the_same() -> None:
    for sample, rollout, advantage in zip(
        cell(), rollouts(), [1.0, -2.0, 0.5], strict=True
    ):
        expected = [0.0] + [advantage / 8] * rollout.response.size
        assert sample.weight_T.tolist() == expected


def gradients(model, loss) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_the_first_step_is_the_plain_policy_gradient() -> None:
    model = local_model(SHAPE)
    ((samples),) = with_old_logprobs(model, [cell()], ALONE)
    loss = clipped_loss(replay(model, samples), samples, clip=0.2)
    total = sum(sample.weight_T.sum() for sample in samples)
    assert loss.item() == pytest.approx(-total, rel=1e-5)
    plain = gradients(model, weighted_loss(replay(model, samples), samples))
    loss = clipped_loss(replay(model, samples), samples, clip=0.2)
    torch.testing.assert_close(gradients(model, loss), plain)


@pytest.mark.parametrize(
    ("advantage", "shift", "is_clipped"),
    [(1.0, -0.5, True), (1.0, 0.5, False), (-1.0, 0.5, True), (-1.0, -0.5, False)],
)
def test_a_token_that_went_far_enough_has_no_gradient(
    advantage: float, shift: float, is_clipped: bool
) -> None:
    """The old log-probability is shifted, so the ratio is exp(-shift)."""
    model = local_model(SHAPE)
    samples = to_samples(rollouts((5,)), np.array([advantage]), 3)
    ((sample,),) = with_old_logprobs(model, [samples], ALONE)
    moved = [replace(sample, old_logprob_T=sample.old_logprob_T + shift)]
    loss = clipped_loss(replay(model, moved), moved, clip=0.2)
    largest = max(float(g.abs().max()) for g in gradients(model, loss))
    assert (largest == 0) == is_clipped


def test_old_logprobs_go_to_their_samples() -> None:
    model = local_model(SHAPE)
    together, alone = (
        with_old_logprobs(model, cells, ALONE)
        for cells in ([cell()], [[sample] for sample in cell()])
    )
    for ours, (one,) in zip(together[0], alone, strict=True):
        np.testing.assert_allclose(ours.old_logprob_T, one.old_logprob_T, rtol=1e-5)


def test_a_filler_has_no_gradient() -> None:
    model = local_model(SHAPE)
    samples = [filler(SHAPE)]
    ((filled,),) = with_old_logprobs(model, [samples], ALONE)
    loss = clipped_loss(replay(model, [filled]), [filled], clip=0.2)
    assert all(not g.any() for g in gradients(model, loss))
