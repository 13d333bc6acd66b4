"""The window placement model against all placements of small layers."""

import numpy as np
import pytest

from formulations import placement_window
from rpopt.errors import InstanceError
from rpopt.placement.instance_window import (
    WindowPlacementInstance,
    check_window,
    evaluate_window,
)
from tests.formulations.solving import optimum
from tests.placement.cases_window import (
    optimal_total,
    random_instance,
    window_instance,
)

SHAPES = [(1, 3), (2, 2), (3, 2), (2, 3), (6, 1)]


def check_model(instance: WindowPlacementInstance) -> None:
    layers = range(instance.demand_GLE.shape[1])
    models = [placement_window.build(instance, layer=layer) for layer in layers]
    values = [optimum(model) for model in models]
    placement = placement_window.solution(instance, models)
    assert check_window(instance, placement) == []
    assert evaluate_window(instance, placement).total_L.tolist() == values
    assert values == [optimal_total(instance, layer) for layer in layers]


@pytest.mark.parametrize("seed", range(4))
def test_smallest_sum_of_peaks(seed: int) -> None:
    per_rank, ranks = SHAPES[seed]
    check_model(random_instance(seed, per_rank=per_rank, ranks=ranks))


@pytest.mark.slow
def test_many_windows() -> None:
    for seed in range(100, 130):
        per_rank, ranks = SHAPES[seed % len(SHAPES)]
        groups = 1 + seed % 4
        check_model(
            random_instance(seed, groups=groups, per_rank=per_rank, ranks=ranks)
        )


def test_zero_and_equal_demand() -> None:
    for demand in ([[[0] * 4]] * 2, [[[7] * 4]] * 2):
        check_model(window_instance(demand, 2))


def test_a_move_budget_gives_the_trade_off() -> None:
    instance = random_instance(3, layers=1, per_rank=2, ranks=3)
    home_E = np.array([0, 0, 1, 1, 2, 2])
    curve = []
    for most in (0, 2, 4, 6):
        model = placement_window.build(instance, layer=0, home_E=home_E, max_moves=most)
        curve.append(optimum(model))
        found = placement_window.solution(instance, [model])
        assert (found.rank_LE[0] != home_E).sum() <= most
        assert curve[-1] == optimal_total(instance, 0, home_E, most)
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > curve[-1] == optimal_total(instance, 0)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InstanceError, match="layer 2; there are 2"):
        placement_window.build(random_instance(0), layer=2)
    with pytest.raises(InstanceError, match="go together"):
        placement_window.build(random_instance(0), layer=0, max_moves=1)
