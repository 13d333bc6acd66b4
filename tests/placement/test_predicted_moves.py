"""Moves on a forecast: what pays, what was expected and what came of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.placement.hysteresis import Moves
from rpopt.placement.instance_window import evaluate_window
from rpopt.placement.predicted_moves import choose_predicted_moves, compare_saving
from rpopt.plans import Placement
from tests.placement.cases import fuzz
from tests.placement.cases_window import random_instance, window_instance

STAY = Placement.identity(2, 4, 2)
APART = Placement(slot_LE=np.array([[0, 2, 1, 3]] * 2), num_ep_ranks=2)
HOT_PAIR = window_instance([[[10, 10, 0, 0], [3, 1, 2, 2]]], 2)


def choose(**more: Any) -> Moves:
    numbers = {"seconds_per_copy": 0.5, "cost_per_expert_s": 2.0} | more
    return choose_predicted_moves(STAY, APART, HOT_PAIR, **numbers)


def test_a_layer_moves_when_its_expected_saving_pays() -> None:
    found = choose()
    assert found.saving_s_L.tolist() == [5.0, 0.0]
    assert found.cost_s_L.tolist() == [4.0, 0.0]
    assert found.moves_L.tolist() == [True, False]
    assert not choose(cost_per_expert_s=2.5).moves_L.any()
    assert choose(cost_per_expert_s=2.5, life_windows=1.1).moves_L.any()


def test_ranks_are_renumbered_first() -> None:
    mirrored = Placement(slot_LE=np.array([[2, 3, 0, 1]] * 2), num_ep_ranks=2)
    found = choose_predicted_moves(
        STAY, mirrored, HOT_PAIR, seconds_per_copy=1.0, cost_per_expert_s=0.0
    )
    assert found.placement == STAY


def test_expected_stands_beside_realised() -> None:
    came = window_instance([[[0, 8, 8, 0], [3, 1, 2, 2]]], 2)
    saving = compare_saving(STAY, choose().placement, expected=HOT_PAIR, window=came)
    assert saving.expected_L.tolist() == [10, 0]
    assert saving.realised_L.tolist() == [0, 0]
    came = window_instance([[[8, 0, 8, 0], [3, 1, 2, 2]]], 2)
    saving = compare_saving(STAY, choose().placement, expected=HOT_PAIR, window=came)
    assert (saving.expected, saving.realised) == (10, -8)
    assert str(saving) == (
        "expected to save 10 copies at the peaks, saved -8; 1 of 2 layers lost"
    )


@given(st.integers(0, 2**32), st.floats(0, 50), st.floats(0, 5))
@fuzz
def test_a_forecast_that_comes_true_saves_what_was_expected(
    seed: int, cost: float, life: float
) -> None:
    instance = random_instance(seed, layers=3)
    rng = np.random.default_rng(seed)
    current, proposed = (
        Placement(
            slot_LE=np.array([rng.permutation(6) for _ in range(3)]), num_ep_ranks=3
        )
        for _ in range(2)
    )
    found = choose_predicted_moves(
        current,
        proposed,
        instance,
        seconds_per_copy=1.0,
        cost_per_expert_s=cost,
        life_windows=life,
    )
    saving = compare_saving(
        current, found.placement, expected=instance, window=instance
    )
    assert saving.expected_L.tolist() == saving.realised_L.tolist()
    assert saving.expected_L.tolist() == found.saving_s_L.tolist()
    before, after = (
        evaluate_window(instance, p).total_L.sum() for p in (current, found.placement)
    )
    paid = float(found.cost_s_L.sum())
    assert life * (before - after) >= paid or not found.moves_L.any()


@pytest.mark.parametrize(("windows_after", "moves"), [(2, True), (3, False)])
def test_the_known_window_counts_once_and_the_forecast_for_the_rest(
    windows_after: int, moves: bool
) -> None:
    forecast_LE = [[4, 0, 4, 0], [1, 1, 1, 1]]  # loses 4 copies each time
    groups = np.concatenate([HOT_PAIR.demand_GLE, [forecast_LE]])
    found = choose_predicted_moves(
        STAY,
        APART,
        window_instance(groups, 2, [1, windows_after]),
        seconds_per_copy=1.0,
        cost_per_expert_s=0.5,
    )
    assert found.moves_L.tolist() == [moves, False]
    assert found.expected_s == pytest.approx(1.0 if moves else 0.0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="the proposed placement"):
        choose_predicted_moves(
            STAY,
            Placement.identity(1, 4, 2),
            HOT_PAIR,
            seconds_per_copy=1.0,
            cost_per_expert_s=1.0,
        )
    with pytest.raises(InstanceError, match="seconds_per_copy = nan"):
        choose(seconds_per_copy=float("nan"))
    with pytest.raises(InstanceError, match="seconds_per_copy = -1"):
        choose(seconds_per_copy=-1.0)
    with pytest.raises(InfeasibleError, match="the new placement"):
        compare_saving(
            STAY, Placement.identity(2, 4, 4), expected=HOT_PAIR, window=HOT_PAIR
        )
