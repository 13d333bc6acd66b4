"""A trainer with the planner beside it trains as one process without it does."""

import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rpopt.errors import InstanceError
from rpopt.online import collective
from rpopt.online.background import OnlinePlanner, PlannedStep
from rpopt.online.registration import ExpertRegistry
from rpopt.online.samples import LocalSamples
from rpopt.rules import PackingRules
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import Parallel, parallel
from rpopt.trainer.slots import PlacedSlots
from rpopt.trainer.step import Sample, train_step
from tests.cases import HALF
from tests.distributed.ranks import results_of
from tests.trainer.cases import identity, small_shape

SHAPE = small_shape()
L, E, K = SHAPE.num_moe_layers, SHAPE.num_experts, SHAPE.top_k
LENGTHS = (3, 9, 1, 14, 5, 5, 2, 7, 11, 4, 6, 8)
STEPS = 3
Weights = dict[tuple[Any, ...], np.ndarray]
pytestmark = pytest.mark.dist


def window(step: int) -> list[Sample]:
    """Samples whose routes prefer other experts in every window."""
    rng = np.random.default_rng(step)
    popular_E = np.array([8.0, 8, 4, 4, 1, 1, 1, 1])[rng.permutation(E)]
    found = []
    for length in LENGTHS:
        noise_TLE = rng.gumbel(size=(length, L, E)) + np.log(popular_E)
        found.append(
            Sample(
                tokens=rng.integers(13, size=length + 1),
                routes_TLK=np.argsort(-noise_TLE, axis=2)[:, :, :K].astype(np.uint8),
                weight_T=rng.normal(size=length) / sum(LENGTHS),
            )
        )
    return found


def own_part(samples: list[Sample]) -> list[Sample]:
    rank, size = dist.get_rank(), dist.get_world_size()
    return samples[rank * len(samples) // size : (rank + 1) * len(samples) // size]


def histograms(samples: list[Sample]) -> LocalSamples:
    one_hot = [np.eye(E, dtype=np.int32)[sample.routes_TLK] for sample in samples]
    return LocalSamples(
        length_N=np.array([sample.length for sample in samples]),
        demand_NLE=np.stack([each.sum(axis=(0, 2)) for each in one_hot]),
        top_k=K,
    )


def build(
    ep: int, **more: Any
) -> tuple[Model, torch.optim.Optimizer, ExpertRegistry, Parallel, OnlinePlanner]:
    groups = parallel(ep)
    registry = ExpertRegistry(
        n_layers=L, n_experts=E, ep_size=ep, ep_rank=groups.ep_rank
    )
    model = Model(SHAPE, registry, seed=7, group=groups.ep_group)
    for layer, moe in enumerate(model.moe_layers):
        for name, parameter in moe.experts.named_parameters():
            registry.add_fused(layer, name, parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    registry.add_optimizer(optimizer)
    rules = PackingRules(token_cap=24)
    planner = OnlinePlanner(
        registry,
        groups.topology,
        rules,
        HALF,
        group=None,
        ep_group=groups.ep_group,
        stop=MaxSweeps(3),
        **more,
    )
    return model, optimizer, registry, groups, planner


def logical(model: Model, slots: Any) -> Weights:
    """All weights of this rank, experts by their logical id."""
    weights: Weights = {
        ("dense", i): parameter.detach().numpy()
        for i, parameter in enumerate(model.dense_parameters())
    }
    for layer, moe in enumerate(model.moe_layers):
        for name, fused in moe.experts.named_parameters():
            for slot, expert in enumerate(slots.local_experts(layer)):
                weights[layer, name, expert] = fused[slot].detach().numpy()
    return weights


def train_planned(ep: int) -> tuple[Weights, list[float], list[PlannedStep]]:
    model, optimizer, registry, groups, planner = build(ep)
    losses, steps = [], []
    for step in range(STEPS):
        own = own_part(window(step))
        planner.submit(histograms(own))
        time.sleep(0.2)  # other work
        planned = planner.collect()
        cells = planner.deal(planned.plan, own)
        report = train_step(model, registry, optimizer, cells, groups, aux_weight=0.1)
        losses.append(report.loss)
        steps.append(planned)
    return logical(model, registry), losses, steps


def train_plainly() -> tuple[Weights, list[float]]:
    slots = PlacedSlots(identity(SHAPE), 0)
    model = Model(SHAPE, slots, seed=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    alone = Parallel(topology=Topology(dp=1, ep=1), rank=0)
    losses = []
    for step in range(STEPS):
        cells = [[sample] for sample in window(step)]
        report = train_step(model, slots, optimizer, cells, alone, aux_weight=0.1)
        losses.append(report.loss)
    return logical(model, slots), losses


@pytest.mark.parametrize(("world", "ep"), [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_planned_training_equals_plain_training(world: int, ep: int) -> None:
    expected, expected_losses = train_plainly()
    answers = results_of(train_planned, world, ep)
    seen = set()
    for weights, losses, steps in answers:
        assert losses == pytest.approx(expected_losses, rel=1e-5)
        for name, weight in weights.items():
            assert np.allclose(weight, expected[name], rtol=1e-4, atol=1e-5), name
        seen |= weights.keys()
        assert all(planned.plan.reason is None for planned in steps)
        assert all(planned.hidden_s > 0 for planned in steps)
        assert [s.plan.placement for s in steps] == [
            s.plan.placement for s in answers[0][2]
        ]
    assert seen == expected.keys()
    moved = sum(planned.churn for planned in answers[0][2])
    assert (moved > 0) == (ep > 1)


def fail_once() -> list[tuple[bool, float]]:
    *_, planner = build(2, timeout_s=5.0)
    real_plan, seen = collective.plan, []
    for step in range(3):
        if step == 1 and dist.get_rank() == 1:
            collective.plan = lambda *_, **__: 1 / 0  # type: ignore[assignment]
        planner.submit(histograms(own_part(window(step))))
        with pytest.raises(InstanceError, match="call collect first"):
            planner.submit(LocalSamples(length_N=np.arange(0)))
        planned = planner.collect()
        collective.plan = real_plan
        seen.append((planned.plan.is_baseline, planned.churn))
    with pytest.raises(InstanceError, match="call submit first"):
        planner.collect()
    return seen


def test_after_a_failure_the_next_window_is_planned_again() -> None:
    first, second = results_of(fail_once, 2)
    assert first == second
    assert [is_baseline for is_baseline, _ in first] == [False, True, False]
    assert first[1][1] == 0.0


def weigh_moves() -> list[float]:
    churn = []
    for life_steps, step_s in ((1e9, 1.0), (1.0, 1e-9)):
        *_, planner = build(2, life_steps=life_steps)
        for step in range(2):  # the first move is measured
            planner.submit(histograms(own_part(window(step))))
            churn.append(planner.collect().churn)
            planner.observe_step(step_s)
    return churn


def test_a_move_that_does_not_pay_is_not_made() -> None:
    long_life, short_life = np.array(results_of(weigh_moves, 2)).reshape(2, 2, 2)[0]
    assert long_life.tolist() > [0.0, 0.0]
    assert short_life[1] == 0.0
    assert long_life[1] > 0
