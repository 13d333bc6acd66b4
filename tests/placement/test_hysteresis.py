"""Hysteresis: who moves, at which cost, and what is reported of it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InstanceError
from rpopt.placement.hysteresis import Moves, choose_moves, report_moves
from rpopt.plans import Placement
from tests.placement.cases import fuzz

STAY = Placement.identity(3, 4, 2)
SWAPPED = Placement(slot_LE=[[0, 2, 1, 3], [0, 1, 2, 3], [0, 2, 1, 3]], num_ep_ranks=2)


def choose(saving_s_L: Any, **more: Any) -> Moves:
    numbers = {"cost_per_expert_s": 1.0, "life_steps": 10.0} | more
    return choose_moves(STAY, SWAPPED, saving_s_L=saving_s_L, **numbers)


def test_only_layers_that_pay_move() -> None:
    found = choose([0.3, 9.0, 0.1])
    assert found.moves_L.tolist() == [True, False, False]
    assert found.num_experts_L.tolist() == [2, 0, 0]
    assert found.cost_s_L.tolist() == [2.0, 0.0, 0.0]
    assert found.placement.slot_LE.tolist() == [
        [0, 2, 1, 3],
        *STAY.slot_LE[1:].tolist(),
    ]
    assert found.churn == 2 / 12
    assert found.expected_s == pytest.approx(1.0)


def test_a_saving_that_only_meets_the_cost_does_not_move() -> None:
    assert not choose([0.2, 0.0, 0.2]).moves_L.any()
    assert not choose([0.3, 0.0, 0.3], cost_per_layer_s=1.0).moves_L.any()
    assert not choose([9.0, 9.0, 9.0], life_steps=0.0).moves_L.any()


def test_a_loss_never_moves_even_for_free() -> None:
    free = choose([-1.0, -1.0, 0.5], cost_per_expert_s=0.0)
    assert free.moves_L.tolist() == [False, False, True]


@given(st.integers(0, 2**32), st.floats(0, 5), st.floats(0, 20))
@fuzz
def test_moves_never_cost_more_than_they_promise(
    seed: int, cost: float, life: float
) -> None:
    rng = np.random.default_rng(seed)
    slots = [np.array([rng.permutation(8) for _ in range(4)]) for _ in range(2)]
    current, proposed = (Placement(slot_LE=s, num_ep_ranks=4) for s in slots)
    saving_L = rng.normal(size=4)
    found = choose_moves(
        current,
        proposed,
        saving_s_L=saving_L,
        cost_per_expert_s=cost,
        life_steps=life,
    )
    assert found.expected_s >= 0
    moved_L = found.placement.num_moved(current)
    assert moved_L.tolist() == found.num_experts_L.tolist()
    stays = choose_moves(
        found.placement,
        proposed,
        saving_s_L=np.where(found.moves_L, 0.0, saving_L),
        cost_per_expert_s=cost,
        life_steps=life,
    )
    assert not stays.moves_L.any()


def test_expected_stands_beside_realised() -> None:
    moves = choose([0.3, 0.0, 0.3])
    before, after = np.full(3, 2.0), np.array([1.8, 2.0, 1.9])
    report = report_moves([(moves, before, after), (None, before, after)])
    assert report.steps == 2
    assert report.expected_s == pytest.approx(1.2)
    assert report.realised_s == pytest.approx(0.6)
    assert report.cost_s == 4.0
    assert report.churn == pytest.approx(4 / 12 / 2)
    assert not report.paid
    assert "expected to save 1.2 s, saved 0.6 s" in str(report)
    assert report_moves([]).steps == 0


@pytest.mark.parametrize(
    ("saving", "more", "message"),
    [
        ([1.0], {}, "each of 3 layers"),
        ([1.0, math.nan, 1.0], {}, "1 entries that are not finite"),
        ([1.0] * 3, {"life_steps": -1.0}, "life_steps = -1.0"),
        ([1.0] * 3, {"life_steps": math.inf}, "life_steps = inf"),
        ([1.0] * 3, {"cost_per_expert_s": -2.0}, "cost_per_expert_s = -2.0"),
    ],
)
def test_bad_numbers_are_refused(saving: Any, more: Any, message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        choose(saving, **more)


def test_other_placements_are_refused() -> None:
    with pytest.raises(InstanceError, match="cannot be compared"):
        choose_moves(
            STAY,
            Placement.identity(2, 4, 2),
            saving_s_L=[1.0, 1.0],
            cost_per_expert_s=1.0,
            life_steps=1.0,
        )
    with pytest.raises(InstanceError, match="each of 3 layers"):
        report_moves([(choose([1.0] * 3), [1.0], [1.0])])
