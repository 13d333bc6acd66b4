"""The instance refuses what no sum can hold; evaluator against the definition."""

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.placement.instance import MAX_LAYER_LOAD, check, evaluate
from rpopt.plans import Placement
from tests.placement.cases import instance


def test_evaluate_sums_each_rank() -> None:
    placement = Placement(slot_LE=np.array([[3, 1, 0, 2]]), num_ep_ranks=2)
    cost = evaluate(instance([[5, 7, 1, 2]], 2), placement)
    assert cost.load_LP.tolist() == [[8, 7]]
    assert cost.peak_L.tolist() == [8]
    assert cost.peak_over_mean_L.tolist() == [8 / 7.5]


def test_a_layer_without_load_is_balanced() -> None:
    empty = instance(np.zeros((1, 4)), 2)
    cost = evaluate(empty, Placement.identity(1, 4, 2))
    assert cost.peak_over_mean_L.tolist() == [1.0]


def test_check_names_what_does_not_fit() -> None:
    found = check(instance([[1, 2, 3, 4]], 2), Placement.identity(2, 4, 4))
    assert [v.constraint for v in found] == ["every expert once", "EP ranks"]


@pytest.mark.parametrize("load", [2**46, 2**62])
def test_sums_that_could_overflow_are_refused(load: int) -> None:
    with pytest.raises(InstanceError, match="loads of layer 1 sum to"):
        instance([[0, 0, 0, 0], [load] * 4], 2)


def test_the_largest_sum_is_kept() -> None:
    load_LE = [[MAX_LAYER_LOAD - 1, 0, 0, 0]]
    cost = evaluate(instance(load_LE, 2), Placement.identity(1, 4, 2))
    assert cost.peak_L.tolist() == [MAX_LAYER_LOAD - 1]
