"""Forecasts of demand: exact sums, whole copies, and what is refused."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InstanceError
from rpopt.placement.instance import MAX_LAYER_LOAD
from rpopt.placement.prediction import (
    AGE_UNIT,
    age_weights,
    decayed_sum,
    demand_by_task,
    exponential_average,
    mixture,
    to_copies,
)
from tests.placement.cases import fuzz

TWO_WINDOWS = np.array([[[8, 0, 0, 0]], [[0, 4, 4, 0]]])


def test_a_window_counts_half_after_the_half_life() -> None:
    assert age_weights(5, 2.0)[[0, 2, 4]].tolist() == [
        AGE_UNIT // 4,
        AGE_UNIT // 2,
        AGE_UNIT,
    ]
    found = exponential_average(TWO_WINDOWS, half_life_windows=1.0, copies=30)
    assert found.tolist() == [[10, 10, 10, 0]]


def test_without_memory_the_latest_window_is_expected_again() -> None:
    found = exponential_average(TWO_WINDOWS, half_life_windows=0.0, copies=8)
    assert found.tolist() == TWO_WINDOWS[1].tolist()


def test_a_layer_without_demand_is_expected_to_be_even() -> None:
    past_WLE = np.array([[[0, 0, 0, 0], [1, 0, 0, 3]]])
    found = exponential_average(past_WLE, half_life_windows=3.0, copies=4)
    assert found.tolist() == [[1, 1, 1, 1], [1, 0, 0, 3]]


@given(
    st.lists(
        st.one_of(st.integers(0, 5), st.integers(0, 2**40)), min_size=1, max_size=9
    ),
    st.one_of(st.integers(0, 9), st.integers(0, MAX_LAYER_LOAD - 1)),
)
@fuzz
def test_copies_add_up_and_are_within_one_of_their_share(
    base_E: list[int], copies: int
) -> None:
    (found_E,) = to_copies(np.array([base_E]), copies).tolist()
    assert sum(found_E) == copies
    total = sum(base_E) or len(base_E)
    for found, base in zip(found_E, base_E if any(base_E) else [1] * 9, strict=False):
        assert abs(found - Fraction(base * copies, total)) <= 1


@given(st.integers(0, 2**32), st.integers(1, 6), st.floats(0.1, 50))
@fuzz
def test_the_decayed_sum_is_exact(seed: int, windows: int, half_life: float) -> None:
    past_WLE = np.random.default_rng(seed).integers(0, 2**40, (windows, 2, 3))
    weights = age_weights(windows, half_life).tolist()
    expected = sum(w * p.astype(object) for w, p in zip(weights, past_WLE, strict=True))
    assert decayed_sum(past_WLE, half_life).tolist() == expected.tolist()


def test_tasks_are_mixed_by_their_shares() -> None:
    demand_NLE = np.array([[[6, 0, 0, 0]], [[0, 0, 1, 1]], [[2, 0, 0, 0]]])
    task_KLE = demand_by_task(demand_NLE, [0, 1, 0], 3)
    assert task_KLE.tolist() == [[[8, 0, 0, 0]], [[0, 0, 1, 1]], [[0, 0, 0, 0]]]
    found = mixture(task_KLE, [1, 3, 0], copies=8)
    assert found.tolist() == [[2, 0, 3, 3]]
    assert mixture(task_KLE, [1, 2, 0], copies=9).tolist() == [[3, 0, 3, 3]]
    assert mixture(task_KLE, [0.1, 0.3, 0], copies=8).tolist() == found.tolist()


def test_a_new_task_is_expected_to_be_like_all_together() -> None:
    task_KLE = np.array([[[6, 2, 0, 0]], [[0, 0, 0, 0]]])
    assert mixture(task_KLE, [0, 1], copies=4).tolist() == [[3, 1, 0, 0]]


@given(st.integers(0, 2**32), st.integers(0, 10**9))
@fuzz
def test_mixtures_sum_to_the_copies(seed: int, copies: int) -> None:
    rng = np.random.default_rng(seed)
    task_KLE = rng.integers(0, 3, (3, 2, 4)) * rng.integers(0, 1000, (3, 2, 4))
    found_LE = mixture(task_KLE, rng.random(3), copies=copies)
    assert found_LE.sum(axis=1).tolist() == [copies] * 2
    assert found_LE.min() >= 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"past_WLE": np.zeros((0, 1, 4), dtype=int)}, "there is no past window"),
        ({"past_WLE": -TWO_WINDOWS}, "outside"),
        ({"past_WLE": TWO_WINDOWS[0]}, "2 axes"),
        ({"past_WLE": np.full((2, 1, 4), 2**47)}, "such windows overflow"),
        ({"half_life_windows": -1.0}, "half_life_windows = -1.0"),
        ({"half_life_windows": float("nan")}, "half_life_windows = nan"),
        ({"copies": -1}, "copies = -1"),
        ({"copies": MAX_LAYER_LOAD}, "fewer than"),
    ],
)
def test_pasts_that_do_not_fit_are_refused(change: Any, message: str) -> None:
    good = {"past_WLE": TWO_WINDOWS, "half_life_windows": 1.0, "copies": 8}
    with pytest.raises(InstanceError, match=message):
        exponential_average(**(good | change))


@pytest.mark.parametrize("share", [[1.0], [1.0, -1.0], [0.0, 0.0], [float("inf"), 1.0]])
def test_shares_that_do_not_fit_are_refused(share: list[float]) -> None:
    with pytest.raises(InstanceError, match="share_K"):
        mixture(TWO_WINDOWS, share, copies=8)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InstanceError, match="1 task labels for 2 samples"):
        demand_by_task(TWO_WINDOWS, [0], 2)
    with pytest.raises(InstanceError, match="task 2; there are 2"):
        demand_by_task(TWO_WINDOWS, [0, 2], 2)
