"""One step under any placement and layout equals the plain one on one process."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.topology import Topology
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import Parallel, parallel
from rpopt.trainer.slots import PlacedSlots
from rpopt.trainer.step import Sample, StepReport, train_step
from tests.distributed.ranks import results_of
from tests.trainer.cases import identity, random_placement, small_shape

SHAPE = small_shape()
ALONE = Parallel(topology=Topology(dp=1, ep=1), rank=0)
LENGTHS = (3, 9, 1, 14, 5, 5, 2, 7)
Weights = dict[str, np.ndarray]


def samples(seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    total = sum(LENGTHS)
    found = []
    for length in LENGTHS:
        experts = np.tile(np.arange(8), (length, 2, 1))
        found.append(
            Sample(
                tokens=rng.integers(13, size=length + 1),
                routes_TLK=rng.permuted(experts, axis=2)[:, :, :2].astype(np.uint8),
                weight_T=rng.normal(size=length) / total,
            )
        )
    return found


def deal(window: list[Sample], dp: int, rank: int, seed: int) -> list[list[Sample]]:
    """The rank's cells of a random layout: two rows, no empty cell."""
    order = np.random.default_rng(seed).permutation(len(window))
    cells = [order[i :: 2 * dp] for i in range(2 * dp)]
    return [[window[i] for i in cells[row * dp + rank]] for row in range(2)]


def train(
    placement: Placement, groups: Parallel, cells_of: Any, num_steps: int
) -> tuple[list[StepReport], Weights, Weights]:
    """Reports, and all weights and gradients by logical name, after some steps."""
    slots = PlacedSlots(placement, groups.ep_rank)
    model = Model(SHAPE, slots, seed=7, group=groups.ep_group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reports = [
        train_step(model, slots, optimizer, cells_of(step), groups, aux_weight=0.1)
        for step in range(num_steps)
    ]
    weights, gradients = {}, {}
    for name, tensor in logical(model, slots):
        weights[name] = tensor.detach().numpy().copy()
        gradients[name] = tensor.grad.numpy().copy()
    return reports, weights, gradients


def logical(model: Model, slots: PlacedSlots) -> Any:
    layer_of = {id(moe.experts): i for i, moe in enumerate(model.moe_layers)}
    for name, module in model.named_modules():
        for part, parameter in module.named_parameters(recurse=False):
            if id(module) not in layer_of:
                yield f"{name}.{part}", parameter
                continue
            for slot, expert in enumerate(slots.local_experts(layer_of[id(module)])):
                view = parameter[slot]
                view.grad = parameter.grad[slot]
                yield f"{name}.{part}.{expert}", view


def reference(num_steps: int) -> tuple[list[StepReport], Weights, Weights]:
    """Identity placement, one sample per cell, one process."""
    return train(
        identity(SHAPE), ALONE, lambda step: [[s] for s in samples(step)], num_steps
    )


def work(ep: int, num_steps: int, is_placed: bool) -> Any:
    groups = parallel(ep)
    dp = groups.topology.dp
    placement = identity(SHAPE, ep)
    if is_placed:
        placement = random_placement(SHAPE, ep, 5)
    return train(
        placement,
        groups,
        lambda step: deal(samples(step), dp, groups.rank, seed=step),
        num_steps,
    )


def merged(results: list[Any], part: int) -> Weights:
    """All ranks' tensors; those that several ranks hold must be equal."""
    found: Weights = {}
    for result in results:
        for name, tensor in result[part].items():
            assert np.array_equal(found.setdefault(name, tensor), tensor), name
    return found


def assert_same(results: list[Any], expected: Any) -> None:
    reports, weights, gradients = expected
    for found in results:
        for ours, plain in zip(found[0], reports, strict=True):
            assert ours.loss == pytest.approx(plain.loss, rel=1e-4, abs=1e-6)
            assert ours.gradient_norm == pytest.approx(plain.gradient_norm, rel=1e-4)
            assert np.array_equal(ours.load_LE, plain.load_LE)
            assert ours.num_tokens == sum(LENGTHS)
    for part, tensors, tolerance in ((1, weights, 2e-4), (2, gradients, 1e-5)):
        found_by_name = merged(results, part)
        assert found_by_name.keys() == tensors.keys()
        for name, tensor in tensors.items():
            np.testing.assert_allclose(
                found_by_name[name], tensor, rtol=1e-3, atol=tolerance, err_msg=name
            )


def test_a_placement_changes_not_one_bit_of_ten_steps() -> None:
    expected = reference(10)
    found = train(
        random_placement(SHAPE, 1, 3),
        ALONE,
        lambda step: [[s] for s in samples(step)],
        10,
    )
    for part in (1, 2):
        for name, tensor in expected[part].items():
            assert np.array_equal(found[part][name], tensor), name
    assert [r.loss for r in found[0]] == [r.loss for r in expected[0]]


def test_regrouping_on_one_process() -> None:
    found = train(
        identity(SHAPE), ALONE, lambda step: deal(samples(step), 1, 0, step), 3
    )
    assert_same([found], reference(3))


@pytest.mark.dist
@pytest.mark.parametrize(("world", "ep"), [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_any_placement_and_layout_trains_the_same(world: int, ep: int) -> None:
    assert_same(results_of(work, world, ep, 1, True), reference(1))


@pytest.mark.dist
def test_ten_steps_with_two_replicas_of_every_expert() -> None:
    assert_same(results_of(work, 4, 2, 10, True), reference(10))


def refused() -> list[str]:
    groups = parallel(2)
    return [refusal(kind, groups) for kind in ("fewer", "empty", "routes")]


def refusal(kind: str, groups: Parallel) -> str:
    window = samples()
    cells = [[window[0]], [window[1]]]
    if groups.rank == 1:
        cells = {
            "fewer": cells[:1],
            "empty": [cells[0], []],
            "routes": [cells[0], [_without_a_layer(window[1])]],
        }[kind]
    try:
        train(identity(SHAPE, 2), groups, lambda step: cells, 1)
    except InstanceError as error:
        return str(error)
    return ""


def _without_a_layer(sample: Sample) -> Sample:
    return Sample(
        tokens=sample.tokens,
        routes_TLK=sample.routes_TLK[:, :1],
        weight_T=sample.weight_T,
    )


@pytest.mark.dist
def test_all_ranks_refuse_cells_that_would_hang() -> None:
    for messages in results_of(refused, 2):
        assert "[2, 1] cells" in messages[0]
        assert "rank 1: a cell is empty" in messages[1]
        assert "rank 1: routes have shape" in messages[2]


def groups_of(ep: int) -> Any:
    groups = parallel(ep)
    own = [groups.ep_group, groups.edp_group]
    return [None if g is None else dist.get_process_group_ranks(g) for g in own]


@pytest.mark.dist
def test_groups_are_those_of_the_topology() -> None:
    assert results_of(groups_of, 4, 2) == [
        [[0, 1], [0, 2]],
        [[0, 1], [1, 3]],
        [[2, 3], [0, 2]],
        [[2, 3], [1, 3]],
    ]
