"""The placement formulation against brute force over all balanced placements."""

import numpy as np
import pytest

from formulations import placement_makespan
from rpopt.errors import InstanceError
from rpopt.placement.instance import PlacementInstance, check, evaluate
from tests.formulations import oracle
from tests.formulations.solving import optimum


def check_placement(instance: PlacementInstance) -> None:
    num_layers = instance.load_LE.shape[0]
    models = [placement_makespan.build(instance, layer=k) for k in range(num_layers)]
    peaks = [optimum(model) for model in models]
    placement = placement_makespan.solution(instance, models)
    assert check(instance, placement) == []
    assert evaluate(instance, placement).peak_L.tolist() == peaks
    assert peaks == [oracle.smallest_peak(instance, k) for k in range(num_layers)]


@pytest.mark.parametrize("seed", range(4))
def test_smallest_peak(seed: int) -> None:
    check_placement(oracle.random_placement(np.random.default_rng(seed)))


@pytest.mark.slow
def test_many_placements() -> None:
    for seed in range(100, 150):
        check_placement(oracle.random_placement(np.random.default_rng(seed)))


def test_equal_and_zero_loads() -> None:
    for load in ([0, 0, 0, 0], [7, 7, 7, 7]):
        check_placement(PlacementInstance(load_LE=np.array([load]), num_ep_ranks=2))


def test_an_unknown_layer_is_refused() -> None:
    instance = PlacementInstance(load_LE=np.array([[1, 2]]), num_ep_ranks=2)
    with pytest.raises(InstanceError, match="layer 1"):
        placement_makespan.build(instance, layer=1)
