"""Annealed placements: feasible, never worse, repeatable, and better than aggregate."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.anneal.placement import _go_home, place_near, place_window
from rpopt.errors import InfeasibleError, InstanceError
from rpopt.placement.bounds_window import window_bounds
from rpopt.placement.heuristics import identity, lpt, place
from rpopt.placement.instance_window import (
    WindowPlacementInstance,
    check_window,
    evaluate_window,
    sampled_groups,
)
from rpopt.placement.search import relabel
from rpopt.plans import Placement
from tests.placement.cases import fuzz
from tests.placement.cases_window import (
    optimal_total,
    random_instance,
    window_instance,
    window_instances,
)


def totals(instance: WindowPlacementInstance, placement: Placement) -> Any:
    return evaluate_window(instance, placement).total_L


@given(window_instances())
@fuzz
def test_feasible_and_never_worse_than_any_start(
    instance: WindowPlacementInstance,
) -> None:
    starts = [identity(instance.aggregate), lpt(instance.aggregate)]
    found = place_window(instance, starts=starts, effort=20)
    assert check_window(instance, found) == []
    for start in starts:
        assert (totals(instance, found) <= totals(instance, start)).all()
    bound_L = [bound.value for bound in window_bounds(instance)]
    assert (totals(instance, found) >= bound_L).all()


@pytest.mark.parametrize("seed", range(6))
def test_small_layers_are_solved(seed: int) -> None:
    instance = random_instance(seed, groups=4, per_rank=3, ranks=3)
    found = totals(instance, place_window(instance, seed=seed))
    assert found.tolist() == [optimal_total(instance, layer) for layer in range(2)]


def test_the_result_depends_on_nothing_but_the_arguments() -> None:
    instance = random_instance(1, groups=8, layers=4, per_rank=4, ranks=4)
    found = place_window(instance, seed=5, threads=1)
    assert found == place_window(instance, seed=5, threads=3)
    one = window_instance(instance.demand_GLE[:, 2:3], 4, instance.weight_G)
    alone = place_window(one, seed=5)
    assert alone.slot_LE.tolist() == found.slot_LE[2:3].tolist()
    assert found != place_window(instance, seed=6)


def test_groups_of_few_samples_gain_most() -> None:
    rng = np.random.default_rng(0)
    topic = rng.dirichlet(np.full(32, 0.2), 6)
    demand_NLE = rng.multinomial(4000, topic[rng.integers(0, 6, 60)])[:, None]
    gains = []
    for group_size in (2, 30):
        instance = sampled_groups(
            demand_NLE, group_size=group_size, num_groups=60, num_ep_ranks=8, seed=1
        )
        aggregate = place(instance.aggregate)
        found = place_window(instance, starts=[aggregate])
        gains.append(1 - totals(instance, found)[0] / totals(instance, aggregate)[0])
    assert gains[0] > gains[1] >= 0
    assert gains[0] > 0.05


@pytest.mark.parametrize("per_rank", [1, 4])
def test_zero_demand_keeps_every_slot(per_rank: int) -> None:
    instance = window_instance(np.zeros((2, 3, 4 * per_rank), dtype=np.int64), 4)
    start = identity(instance.aggregate)
    assert place_window(instance, starts=[start]) == start


def test_one_expert_per_rank_has_nothing_to_swap() -> None:
    instance = random_instance(0, per_rank=1, ranks=4)
    start = identity(instance.aggregate)
    assert place_window(instance, starts=[start]) == start


def test_starts_must_fit() -> None:
    instance = random_instance(0)
    for wrong in (Placement.identity(1, 6, 3), Placement.identity(2, 6, 2)):
        with pytest.raises(InfeasibleError, match="start 1 breaks constraints"):
            place_window(instance, starts=[identity(instance.aggregate), wrong])
    with pytest.raises(InstanceError, match="are no permutation"):
        Placement(slot_LE=[[0, 0, 1, 2]], num_ep_ranks=2)
    with pytest.raises(InstanceError, match="effort = -1"):
        place_window(instance, effort=-1)


@given(window_instances(), st.sampled_from([0.0, 0.02, 0.2, 5.0]))
@fuzz
def test_near_placements_keep_within_the_tolerance_and_move_less(
    instance: WindowPlacementInstance, tolerance: float
) -> None:
    current = identity(instance.aggregate)
    best = place_window(instance, effort=20)
    near = place_near(instance, best, current, tolerance=tolerance)
    assert check_window(instance, near) == []
    assert (totals(instance, near) <= totals(instance, best) * (1 + tolerance)).all()
    moved_L = near.num_moved(current)
    assert (moved_L <= relabel(best, current).num_moved(current)).all()
    if tolerance == 5.0 and instance.num_ep_ranks <= 4:  # a peak is at most the sum
        assert not moved_L.any()


def test_moves_are_at_least_those_of_the_certified_curve() -> None:
    instance = random_instance(3, layers=1, per_rank=2, ranks=3)
    current = identity(instance.aggregate)
    home_E = current.rank_LE[0]
    best = place_window(instance)
    for tolerance in (0.0, 0.05, 0.2):
        near = place_near(instance, best, current, tolerance=tolerance)
        moves = int(near.num_moved(current)[0])
        within = optimal_total(instance, 0, home_E, moves)
        assert within <= totals(instance, near)[0]
    with pytest.raises(InstanceError, match="tolerance = -1"):
        place_near(instance, best, current, tolerance=-1)


def test_a_price_moves_fewer_than_going_home_from_the_best() -> None:
    demand_NLE = np.random.default_rng(5).dirichlet(np.full(16, 0.3), (80, 6)) * 1000
    groups = sampled_groups(
        demand_NLE.astype(np.int64), group_size=4, num_groups=20, num_ep_ranks=4, seed=0
    )
    current, best = identity(groups.aggregate), place_window(groups)
    rank_LE = relabel(best, current).rank_LE
    limit_L = (totals(groups, best) * 1.02).astype(np.int64)
    for layer, limit in enumerate(limit_L.tolist()):
        demand_EG = groups.weighted_GLE[:, layer].T
        _go_home(demand_EG, rank_LE[layer], current.rank_LE[layer], limit)
    by_swaps = (rank_LE != current.rank_LE).sum()
    near = place_near(groups, best, current, tolerance=0.02)
    assert near.num_moved(current).sum() < by_swaps
    again = place_near(groups, best, current, tolerance=0.02, threads=1)
    assert (near.slot_LE == again.slot_LE).all()


def test_what_place_near_compares_must_fit() -> None:
    instance = random_instance(0)
    here, other = identity(instance.aggregate), Placement.identity(2, 6, 2)
    for best, current, name in ((other, here, "best"), (here, other, "current")):
        with pytest.raises(InfeasibleError, match=f"the {name} placement breaks"):
            place_near(instance, best, current, tolerance=0.1)


def test_experts_and_layers_without_demand_are_placed_like_others() -> None:
    demand_GLE = np.zeros((3, 2, 6), dtype=np.int64)
    demand_GLE[:, 1, :3] = [[5, 4, 0], [0, 4, 5], [5, 0, 5]]
    instance = window_instance(demand_GLE, 3)
    start = identity(instance.aggregate)
    found = place_window(instance, starts=[start])
    assert totals(instance, found).tolist() == [0, optimal_total(instance, 1)]
    assert (found.slot_LE[0] == start.slot_LE[0]).all()
    near = place_near(instance, found, start, tolerance=0)
    assert near.num_moved(start)[0] == 0
