"""Heuristics: always feasible, never better than the optimum, and good enough."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.packing import PackingInstance, PackingSolution, check, pack
from rpopt.packing.cells import to_cells
from rpopt.packing.heuristics import (
    best_fit_decreasing,
    first_fit_decreasing,
    karmarkar_karp,
    longest_processing_time,
    next_fit,
)
from rpopt.packing.subset import best_subset, empty_last_cells, subset_sum_fill
from tests.oracle import packing as oracle
from tests.packing.examples import instances, make, tiny

Heuristic = Callable[[PackingInstance], PackingSolution]


def next_fit_then_empty(instance: PackingInstance) -> PackingSolution:
    return empty_last_cells(instance, next_fit(instance), max_work=2_000)


HEURISTICS = [
    next_fit,
    first_fit_decreasing,
    best_fit_decreasing,
    longest_processing_time,
    karmarkar_karp,
    subset_sum_fill,
    next_fit_then_empty,
    pack,
]
every_heuristic = pytest.mark.parametrize("heuristic", HEURISTICS)


@every_heuristic
@settings(max_examples=30, deadline=None)
@given(instance=instances())
def test_feasible(heuristic: Heuristic, instance: PackingInstance) -> None:
    assert check(instance, heuristic(instance)) == []


@pytest.mark.parametrize("seed", range(60))
def test_never_better_than_the_optimum(seed: int) -> None:
    instance = tiny(seed)
    optimum = oracle.min_cells(instance)
    for heuristic in HEURISTICS:
        solution = heuristic(instance)
        assert check(instance, solution) == []
        assert solution.num_cells >= optimum


def test_pack_is_nearly_always_optimal_on_tiny_instances() -> None:
    missed = 0
    for seed in range(100, 200):
        instance = make_cells(tiny(seed))
        missed += pack(instance).num_cells - oracle.min_cells(instance)
    assert missed <= 2


def make_cells(instance: PackingInstance) -> PackingInstance:
    """The same items with rows of one cell, so that every cell counts."""
    return make(
        instance.weight_I.tolist(),
        instance.capacity,
        num_samples_I=instance.samples_I,
        max_samples_per_cell=instance.max_samples_per_cell,
    )


@every_heuristic
def test_one_item(heuristic: Heuristic) -> None:
    assert heuristic(make([7], 7)).cell_I.tolist() == [0]


@every_heuristic
def test_all_items_equal(heuristic: Heuristic) -> None:
    instance = make([3] * 10, 10, max_samples_per_cell=2)
    assert heuristic(instance).num_cells == 5


@every_heuristic
def test_deterministic(heuristic: Heuristic) -> None:
    instance = make(np.random.default_rng(0).integers(1, 500, 200).tolist(), 1000)
    assert heuristic(instance) == heuristic(instance)


def test_textbook_cells() -> None:
    instance = make([4, 8, 5, 1, 7, 6, 1, 4, 2, 2], 10)
    assert to_cells(next_fit(instance)) == [[0], [1], [2, 3], [4], [5, 6], [7, 8, 9]]
    ffd = [[1, 8], [3, 4, 9], [0, 5], [2, 6, 7]]
    assert to_cells(first_fit_decreasing(instance)) == ffd


def test_best_fit_takes_the_fullest_cell() -> None:
    instance = make([6, 7, 3], 10)
    assert best_fit_decreasing(instance).cell_I.tolist() == [1, 0, 0]
    assert first_fit_decreasing(instance).cell_I.tolist() == [1, 0, 0]
    instance = make([7, 6, 4, 3, 3], 10)
    assert best_fit_decreasing(instance).num_cells == 3


def test_balancing_a_cost_keeps_the_cap() -> None:
    length_I = np.random.default_rng(2).integers(1, 4000, 100)
    instance = make(length_I.tolist(), 8192)
    for balance in (karmarkar_karp, longest_processing_time):
        solution = balance(instance, cost_I=length_I**2, min_cells=40)
        assert check(instance, solution) == []
        assert solution.num_cells == 40


def test_samples_per_cell_are_balanced_where_they_are_scarce() -> None:
    """Two heavy items fill a cell, but then the light ones need cells of their own."""
    instance = make([50] * 20 + [1] * 80, 100, max_samples_per_cell=5)
    assert best_fit_decreasing(instance).num_cells > 20
    assert pack(instance).num_cells == 20


def test_emptying_moves_and_swaps() -> None:
    """5 + 3 + 2 and 6 + 4 need a swap: no item of the last cell fits elsewhere."""
    instance = make([5, 4, 6, 3, 2], 10)
    start = PackingSolution(cell_I=np.array([0, 0, 1, 1, 2]))
    assert empty_last_cells(instance, start).num_cells == 2
    assert empty_last_cells(instance, start, goal=3) == start
    assert empty_last_cells(instance, start, max_work=1) == start


def test_huge_capacities_are_rounded_not_refused() -> None:
    weight_I = np.random.default_rng(3).integers(2**38, 2**40, 30)
    instance = make(weight_I.tolist(), 2**40)
    for heuristic in (subset_sum_fill, next_fit_then_empty, pack):
        assert check(instance, heuristic(instance)) == []


@pytest.mark.parametrize("seed", range(40))
def test_best_subset_is_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    instance = make(
        rng.integers(1, 40, 9).tolist(),
        int(rng.integers(40, 90)),
        num_samples_I=rng.integers(1, 4, 9),
        max_samples_per_cell=int(rng.integers(3, 9)),
    )
    weights, sizes = instance.weight_I.tolist(), instance.samples_I.tolist()
    limit = instance.max_samples_per_cell
    assert limit is not None
    price = int(rng.integers(0, 20))
    chosen = best_subset(weights, sizes, instance.capacity, limit, price)
    worth = [w + price * s for w, s in zip(weights, sizes, strict=True)]
    assert sum(weights[k] for k in chosen) <= instance.capacity
    assert sum(sizes[k] for k in chosen) <= limit
    assert sum(worth[k] for k in chosen) == oracle.max_cell_value(instance, worth)
