"""Heuristics give valid placements, expected ones, and never beat brute force."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.heuristics import METHODS, eplb, identity, lpt, place, snake
from rpopt.placement.instance import PlacementInstance, check, evaluate
from rpopt.plans import Placement
from tests.oracle.placement import optimal_peaks
from tests.placement.cases import (
    fuzz,
    instance,
    instances,
    lognormal_loads,
    tiny_instances,
)

ALL = {**METHODS, "place": place}


def peaks(problem: PlacementInstance, placement: Placement) -> list[int]:
    assert check(problem, placement) == []
    return evaluate(problem, placement).peak_L.tolist()


@fuzz
@given(tiny_instances())
def test_none_beats_brute_force_and_search_reaches_it(
    problem: PlacementInstance,
) -> None:
    optimum = optimal_peaks(problem).tolist()
    for method in ALL.values():
        found = peaks(problem, method(problem))
        assert all(a >= b for a, b in zip(found, optimum, strict=True))
    assert peaks(problem, place(problem)) == optimum


@fuzz
@given(instances())
def test_place_is_between_the_bound_and_every_heuristic(
    problem: PlacementInstance,
) -> None:
    found = peaks(problem, place(problem, effort=5))
    for layer, bound in enumerate(peak_bounds(problem)):
        assert bound.value <= found[layer]
    for method in METHODS.values():
        other = peaks(problem, method(problem))
        assert all(a <= b for a, b in zip(found, other, strict=True))


@pytest.mark.parametrize("method", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    ("load_LE", "ranks", "peak"),
    [
        pytest.param([[0] * 8], 4, 0, id="no load"),
        pytest.param([[7] * 8], 4, 14, id="equal loads"),
        pytest.param([[5, 1, 4, 2]], 4, 5, id="one expert per rank"),
        pytest.param([[5, 1, 4, 2]], 1, 12, id="one rank"),
        pytest.param([[9]], 1, 9, id="one expert"),
        pytest.param([[1000, 0, 0, 0, 0, 0]], 2, 1000, id="one expert has all"),
    ],
)
def test_what_any_method_must_solve(
    method: Callable[[PlacementInstance], Placement],
    load_LE: list[list[int]],
    ranks: int,
    peak: int,
) -> None:
    problem = instance(load_LE, ranks)
    assert peaks(problem, method(problem)) == [peak]


def test_identity_leaves_every_expert_in_its_slot() -> None:
    assert identity(instance([[3, 1, 2, 5]], 2)).slot_LE.tolist() == [[0, 1, 2, 3]]


def test_lpt_fills_the_least_loaded_rank_that_has_room() -> None:
    problem = instance([[9, 4, 3, 2, 1, 0]], 2)
    # 9 | 4 3 2, and what is left goes where there is room.
    assert lpt(problem).rank_LE.tolist() == [[0, 1, 1, 1, 0, 0]]


def test_lpt_is_exact_above_32_bit_floats_and_eplb_is_not() -> None:
    load_LE = [[2**24 + 1, 2**24, 2**24 + 3, 1, 1, 2, 7, 5]]
    problem = instance(load_LE, 2)
    assert lpt(problem).rank_LE.tolist() == [[1, 1, 0, 1, 1, 0, 0, 0]]
    assert eplb(problem).expert_of_slot_LE.tolist() == [[2, 6, 7, 5, 0, 1, 3, 4]]


def test_eplb_as_deepseek_publishes_it() -> None:
    """What `rebalance_experts(weight, 12, 1, 1, 4)` of deepseek-ai/EPLB returned."""
    load_LE = [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
    assert eplb(instance(load_LE, 4)).expert_of_slot_LE.tolist() == [
        [10, 3, 7, 5, 8, 6, 1, 11, 2, 4, 0, 9],
        [5, 3, 11, 6, 9, 4, 8, 2, 10, 7, 1, 0],
    ]


def test_eplb_moves_nothing_with_one_expert_per_rank() -> None:
    assert eplb(instance([[1, 5, 3]], 3)) == Placement.identity(1, 3, 3)


@fuzz
@given(instances())
def test_eplb_and_lpt_agree_on_small_loads(problem: PlacementInstance) -> None:
    assert peaks(problem, eplb(problem)) == peaks(problem, lpt(problem))


def test_snake_folds_the_largest_beside_the_smallest() -> None:
    assert snake(instance([[6, 1, 4, 3, 9, 2]], 3)).rank_LE.tolist() == [
        [1, 0, 2, 2, 0, 1]
    ]


def test_same_seed_same_placement_for_any_number_of_threads() -> None:
    load_LE = [lognormal_loads(64, 0.4, seed) for seed in range(4)]
    problem = instance(load_LE, 16)
    first = place(problem, seed=3, effort=20)
    assert place(problem, seed=3, effort=20) == first
    assert place(problem, seed=3, effort=20, threads=3) == first
    assert place(problem, seed=4, effort=20) != first


@pytest.mark.parametrize(
    ("num_experts", "ranks", "sigma", "units"),
    [
        (64, 8, 0.4, 1),
        (128, 16, 0.4, 1),
        (128, 8, 1.0, 1),
        (256, 32, 0.4, 1),
        (256, 32, 1.0, 1),
        (64, 16, 0.4, 62_500 * 3 // 10_000),  # four per rank: 0.03 %
        (128, 32, 0.4, 31_250 * 3 // 10_000),
    ],
)
def test_the_search_ends_close_to_the_bound(
    num_experts: int, ranks: int, sigma: float, units: int
) -> None:
    problem = instance([lognormal_loads(num_experts, sigma, seed=0)], ranks)
    (peak,) = peaks(problem, place(problem, effort=3000))
    assert peak - peak_bounds(problem)[0].value <= units


class TestCurrent:
    """A placement in force: it wins ties and few experts move."""

    def test_the_optimal_current_placement_stays(self) -> None:
        problem = instance([[5, 1, 2, 4]], 2)
        current = Placement(slot_LE=np.array([[3, 2, 1, 0]]), num_ep_ranks=2)
        assert place(problem, current=current) == current

    @fuzz
    @given(instances())
    def test_moving_less_never_costs_the_peak(self, problem: PlacementInstance) -> None:
        rng = np.random.default_rng(0)
        slot_LE = rng.permuted(identity(problem).slot_LE, axis=1)
        current = Placement(slot_LE=slot_LE, num_ep_ranks=problem.num_ep_ranks)
        found = place(problem, current=current, effort=5)
        started = peaks(problem, current)
        alone = peaks(problem, place(problem, effort=0))
        for peak, before, other in zip(
            peaks(problem, found), started, alone, strict=True
        ):
            assert peak <= min(before, other)
        stayed_LE = found.rank_LE == current.rank_LE
        assert (found.slot_LE == current.slot_LE)[stayed_LE].all()

    def test_a_tolerance_trades_balance_for_moves(self) -> None:
        before = instance([lognormal_loads(128, 0.6, seed) for seed in range(4)], 16)
        current = place(before)
        rng = np.random.default_rng(1)
        drift_LE = before.load_LE * np.exp(0.05 * rng.standard_normal((4, 128)))
        after = instance(drift_LE.astype(np.int64), 16)
        moved = []
        for tolerance in (0.0, 0.001, 0.01, 0.1):
            found = place(after, current=current, tolerance=tolerance)
            moved.append(found.num_moved(current).mean())
            for peak, bound in zip(
                peaks(after, found), peak_bounds(after), strict=True
            ):
                assert peak <= bound.value * (1 + tolerance) + 2
        assert moved == sorted(moved, reverse=True)
        assert moved[-2] < 0.5 * moved[0]
        assert moved[-1] == 0

    @pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
    def test_a_tolerance_must_make_sense(self, tolerance: float) -> None:
        with pytest.raises(InstanceError, match="tolerance"):
            place(instance([[1, 2, 3, 4]], 2), tolerance=tolerance)

    def test_a_foreign_placement_is_refused(self) -> None:
        with pytest.raises(InfeasibleError, match="the current placement"):
            place(instance([[1, 2, 3, 4]], 2), current=Placement.identity(1, 8, 2))
