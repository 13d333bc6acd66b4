"""The compiled search and the labels of EP ranks."""

from itertools import permutations
from math import comb
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given

from rpopt import counter
from rpopt.errors import InstanceError
from rpopt.placement import kernels
from rpopt.placement.heuristics import identity, snake
from rpopt.placement.instance import PlacementInstance, evaluate
from rpopt.placement.search import MAX_SUBSETS, exchangeable_subsets, improve, relabel
from rpopt.plans import Placement
from tests.oracle.placement import optimal_peak
from tests.placement.cases import fuzz, instance, instances, lognormal_loads


def random_placement(problem: PlacementInstance, seed: int) -> Placement:
    rng = np.random.default_rng(seed)
    slot_LE = rng.permuted(identity(problem).slot_LE, axis=1)
    return Placement(slot_LE=slot_LE, num_ep_ranks=problem.num_ep_ranks)


@fuzz
@given(instances())
def test_improve_never_worsens_a_layer(problem: PlacementInstance) -> None:
    start = random_placement(problem, seed=0)
    before_L = evaluate(problem, start).peak_L
    descent_L = evaluate(problem, improve(problem, start, effort=0)).peak_L
    kicked_L = evaluate(problem, improve(problem, start, effort=5)).peak_L
    assert (descent_L <= before_L).all()
    assert (kicked_L <= descent_L).all()


@pytest.mark.parametrize("per_rank", [2, 3, 4, 5])
def test_two_ranks_are_parted_in_one_exchange(per_rank: int) -> None:
    for seed in range(10):
        load_E = lognormal_loads(2 * per_rank, 1.0, seed, total=1000)
        problem = instance([load_E], 2)
        found = improve(problem, identity(problem), effort=0)
        assert evaluate(problem, found).peak_L[0] == optimal_peak(load_E, 2)


def test_a_layer_depends_on_no_other_layer() -> None:
    load_LE = np.array([lognormal_loads(32, 0.4, seed) for seed in range(3)])
    whole, alone = instance(load_LE, 8), instance(load_LE[2:], 8)
    together = improve(whole, snake(whole), seed=7, effort=10)
    single = improve(alone, snake(alone), seed=7, effort=10)
    assert together.slot_LE[2].tolist() == single.slot_LE[0].tolist()


def test_layers_that_meet_their_bound_are_left_alone() -> None:
    problem = instance([lognormal_loads(32, 0.4, seed) for seed in range(2)], 4)
    start = random_placement(problem, seed=0)
    peak_L = evaluate(problem, start).peak_L
    found = improve(problem, start, bound_L=np.array([peak_L[0], 0]), effort=0)
    assert found.slot_LE[0].tolist() == start.slot_LE[0].tolist()
    assert evaluate(problem, found).peak_L[1] < peak_L[1]


def test_the_largest_loads_do_not_overflow() -> None:
    load_E = lognormal_loads(32, 0.4, seed=0, total=2**48 - 1)
    problem = instance([load_E], 4)
    found = evaluate(problem, improve(problem, identity(problem)))
    assert found.load_LP.sum() == 2**48 - 1
    assert found.peak_over_mean_L[0] < 1.00001


@pytest.mark.parametrize("name", ["effort", "threads"])
def test_counts_must_be_counts(name: str) -> None:
    problem = instance([[4, 3, 2, 1]], 2)
    with pytest.raises(InstanceError, match=name):
        improve(problem, identity(problem), **{name: -1})


def test_the_compiled_draws_are_those_of_the_counter() -> None:
    @numba.njit
    def draws(state: Any, limit: int, count: int) -> Any:
        return [kernels._below(state, limit) for _ in range(count)]

    key = counter.key(5)
    random_2 = np.array([key, 0], dtype=np.uint64)
    empty = np.zeros((1, 1), dtype=np.int64)
    state = kernels.State(empty[0], empty, empty[0], empty, random_2)
    expected = [counter.below(counter.draw(key, i), 1000) for i in range(20)]
    assert list(draws(state, 1000, 20)) == expected


@pytest.mark.parametrize("per_rank", [1, 2, 5, 8, 11, 12, 16, 33, 64])
def test_subsets_of_every_size_are_complete(per_rank: int) -> None:
    position_ZJ, start_J1 = exchangeable_subsets(per_rank)
    for size, (start, end) in enumerate(
        zip(start_J1[:-1], start_J1[1:], strict=True), start=1
    ):
        rows = {tuple(row) for row in position_ZJ[start:end, :size].tolist()}
        assert len(rows) == comb(per_rank, size) == end - start
        assert all(len(set(row)) == size for row in rows)
        assert size == 1 or len(rows) <= MAX_SUBSETS
    if per_rank <= 11:
        assert len(start_J1) - 1 == max(1, per_rank // 2)


@pytest.mark.parametrize("seed", range(5))
def test_relabel_moves_the_fewest_experts(seed: int) -> None:
    problem = instance(np.ones((2, 12)), 4)
    current = random_placement(problem, seed)
    other = random_placement(problem, seed + 100)
    found = relabel(other, current)
    for layer in range(2):
        fewest = min(
            int((np.array(label)[other.rank_LE[layer]] != current.rank_LE[layer]).sum())
            for label in permutations(range(4))
        )
        assert found.num_moved(current)[layer] == fewest


@fuzz
@given(instances())
def test_relabel_keeps_peaks_and_slots(problem: PlacementInstance) -> None:
    current, other = random_placement(problem, 1), random_placement(problem, 2)
    found = relabel(other, current)
    loads = [np.sort(evaluate(problem, p).load_LP, axis=1) for p in (found, other)]
    assert (loads[0] == loads[1]).all()
    assert (found.num_moved(current) <= other.num_moved(current)).all()
    stayed_LE = found.rank_LE == current.rank_LE
    assert (found.slot_LE == current.slot_LE)[stayed_LE].all()
