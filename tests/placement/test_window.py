"""The window-aware problem: evaluator, groups, bounds and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InstanceError
from rpopt.placement.bounds_window import (
    aggregate_bound,
    groups_bound,
    window_bounds,
)
from rpopt.placement.heuristics import identity, lpt
from rpopt.placement.instance import evaluate
from rpopt.placement.instance_window import (
    WindowPlacementInstance,
    check_window,
    evaluate_window,
    groups_of_samples,
    sampled_groups,
)
from rpopt.plans import Placement
from tests.placement.cases import fuzz
from tests.placement.cases_window import (
    optimal_total,
    random_instance,
    window_instance,
    window_instances,
)

TWO_GROUPS = window_instance([[[4, 0, 4, 0]], [[0, 6, 0, 6]]], 2, [1, 2])


def test_peaks_are_weighted_and_summed() -> None:
    cost = evaluate_window(TWO_GROUPS, identity(TWO_GROUPS.aggregate))
    assert cost.peak_GL.tolist() == [[4], [6]]
    assert cost.total_L.tolist() == [4 + 2 * 6]
    assert cost.mean_L.tolist() == [4 + 2 * 6]
    together = Placement(slot_LE=[[0, 2, 1, 3]], num_ep_ranks=2)
    assert evaluate_window(TWO_GROUPS, together).total_L.tolist() == [8 + 2 * 12]
    assert evaluate_window(TWO_GROUPS, together).peak_over_mean_L.tolist() == [2.0]


@given(window_instances())
@fuzz
def test_one_group_is_the_aggregate_problem(instance: WindowPlacementInstance) -> None:
    one = window_instance(
        instance.weighted_GLE.sum(axis=0)[None], instance.num_ep_ranks
    )
    placement = lpt(one.aggregate)
    assert one.aggregate == instance.aggregate
    assert np.array_equal(
        evaluate_window(one, placement).total_L,
        evaluate(instance.aggregate, placement).peak_L,
    )


@given(st.integers(0, 2**32), st.sampled_from([(1, 3), (2, 2), (2, 3), (3, 2), (4, 1)]))
@fuzz
def test_bounds_never_exceed_the_optimum(seed: int, shape: tuple[int, int]) -> None:
    instance = random_instance(seed, per_rank=shape[0], ranks=shape[1])
    for layer, bound in enumerate(window_bounds(instance)):
        assert bound.value <= optimal_total(instance, layer)
        assert bound.value >= groups_bound(instance)[layer]
        assert bound.value >= aggregate_bound(instance)[layer]


def test_which_bound_is_stronger_depends() -> None:
    names = {
        bound.name
        for seed in range(20)
        for bound in window_bounds(random_instance(seed, groups=2, per_rank=3))
    }
    assert names == {"groups", "aggregate"}


def test_groups_share_out_the_samples() -> None:
    demand_NLE = np.arange(12).reshape(3, 1, 4)
    found = groups_of_samples(demand_NLE, [[2, 0], [1]], 2)
    assert found.demand_GLE.tolist() == [[[8, 10, 12, 14]], [[4, 5, 6, 7]]]
    assert found.weight_G is not None
    assert found.weight_G.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1]], r"miss 1 samples \[2\] and repeat 0"),
        ([[0, 1], [1, 2]], r"miss 0 samples \[\] and repeat 1 \[1\]"),
        ([[0, 1], [2, 3]], "name sample 3; there are 3"),
        ([[0, -1], [1, 2]], "outside"),
        ([[0, 1, 2], []], "group 1 is empty"),
        ([[0], [1], [2], []], "4 groups of 3 samples"),
        ([], "miss 3 samples"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        groups_of_samples(np.ones((3, 1, 4), dtype=np.int64), groups, 2)


def test_drawn_groups_use_every_sample_equally_often() -> None:
    demand_NLE = np.eye(6, dtype=np.int64)[:, None, :]
    draw = {"group_size": 2, "num_ep_ranks": 3}
    found = sampled_groups(demand_NLE, num_groups=9, seed=3, **draw)
    assert found.demand_GLE.max() == 1
    assert found.demand_GLE.sum(axis=(0, 1)).tolist() == [3] * 6
    assert found == sampled_groups(demand_NLE, num_groups=9, seed=3, **draw)
    assert found != sampled_groups(demand_NLE, num_groups=9, seed=4, **draw)
    with pytest.raises(InstanceError, match="groups of 7 samples cannot be drawn"):
        sampled_groups(demand_NLE, group_size=7, num_groups=1, num_ep_ranks=3, seed=0)


@pytest.mark.parametrize(
    ("demand", "ranks", "weight", "message"),
    [
        (np.zeros((0, 1, 4), dtype=np.int64), 2, None, "there is no group"),
        (np.ones((1, 1, 4), dtype=np.int64), 3, None, "4 experts cannot be spread"),
        (np.ones((2, 1, 4), dtype=np.int64), 2, [1], "1 weights for 2 groups"),
        (np.ones((1, 1, 4), dtype=np.int64), 2, [-1], "outside"),
        (-np.ones((1, 1, 4), dtype=np.int64), 2, None, "outside"),
        (np.full((2, 1, 4), 2**40), 2, [2**10, 1], "divide demand or weights"),
    ],
)
def test_bad_instances_are_refused(
    demand: Any, ranks: int, weight: Any, message: str
) -> None:
    with pytest.raises(InstanceError, match=message):
        window_instance(demand, ranks, weight)


def test_a_placement_of_another_shape_is_named() -> None:
    (violation,) = check_window(TWO_GROUPS, Placement.identity(2, 4, 2))
    assert "the instance has" in violation.message
