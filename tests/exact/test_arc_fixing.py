"""Fixing arcs removes no packing that is looked for; both models agree on the rest."""

import time

import numpy as np
import pytest

from rpopt.exact.arc_fixing import (
    cells_of,
    fix_arcs,
    flow_model,
    full_network,
    slack,
)
from rpopt.exact.column_generation import DualBound, bound_of
from rpopt.exact.gap_of_one import decide
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.pattern_cover import cover_model, enumerate_patterns
from rpopt.highs import Termination, solve
from rpopt.packing.instance import PackingInstance
from tests.oracle import packing as oracle


def tight_instance(rng: np.random.Generator) -> tuple[PackingInstance, int]:
    """An instance whose cells can all be filled, cut at random, and its optimum."""
    capacity, num_cells = int(rng.integers(8, 25)), int(rng.integers(2, 5))
    weights: list[int] = []
    for _ in range(num_cells):
        cuts = np.unique(rng.integers(1, capacity, int(rng.integers(1, 3))))
        weights += np.diff([0, *cuts, capacity]).tolist()
    return PackingInstance(weight_I=weights, capacity=capacity), num_cells


def random_bounds(types: ItemTypes, rng: np.random.Generator) -> list[DualBound]:
    """Any values prove a bound; these include the weights themselves."""
    values = [types.weight_K]
    for _ in range(3):
        noise_K = rng.integers(-1, 2, types.num_types)
        values.append(np.maximum(types.weight_K + noise_K, 0))
    return [bound_of(Knapsack(types), v, types.demand_K) for v in values]


def a_packing(types: ItemTypes, num_cells: int, seed: int) -> list[np.ndarray]:
    """Some packing into that many cells, by random depth-first search."""
    rng = np.random.default_rng(seed)
    items = np.repeat(np.arange(types.num_types), types.demand_K)
    rooms, cells = [types.capacity] * num_cells, [[] for _ in range(num_cells)]

    def put(i: int) -> bool:
        if i == items.size:
            return True
        k = int(items[i])
        for c in rng.permutation(num_cells).tolist():
            if rooms[c] >= types.weight_K[k]:
                rooms[c] -= int(types.weight_K[k])
                cells[c].append(k)
                if put(i + 1):
                    return True
                cells[c].pop()
                rooms[c] += int(types.weight_K[k])
        return False

    assert put(0)
    return [np.array(cell) for cell in cells]


def test_no_arc_of_a_packing_is_removed() -> None:
    rng = np.random.default_rng(5)
    removed = 0
    for seed in range(80):
        instance, num_cells = tight_instance(rng)
        types = ItemTypes.of(instance)
        bounds = random_bounds(types, rng)
        extra = int(rng.integers(0, 2))
        network = fix_arcs(full_network(types, num_cells + extra), bounds)
        removed += types.num_types * (types.capacity + 1) - network.num_arcs
        for cell in a_packing(types, num_cells, seed):
            places = np.cumsum([0, *types.weight_K[cell[:-1]]])
            assert network.arc_KW[cell, places].all()
        patterns = enumerate_patterns(types, bounds, num_cells + extra, 10**5)
        assert patterns is not None
        listed = {tuple(p) for p in patterns.tolist()}
        for cell in a_packing(types, num_cells, seed + 1000):
            assert tuple(np.bincount(cell, minlength=types.num_types)) in listed
    assert removed > 0


def test_slack_of_a_bound() -> None:
    bound = DualBound(value_K=np.array([5, 3]), best=10, total=26)
    assert bound.cells == 3
    assert slack(bound, 3) == 4


def test_both_models_find_what_exists_and_refuse_what_does_not() -> None:
    rng = np.random.default_rng(8)
    for _ in range(4):
        instance, num_cells = tight_instance(rng)
        types = ItemTypes.of(instance)
        bounds = random_bounds(types, rng)[:1]
        network = fix_arcs(full_network(types, num_cells), bounds)
        result = solve(flow_model(network), time_limit_s=20)
        assert result.x is not None
        cells = cells_of(network, result.x)
        assert len(cells) == num_cells
        assert all(types.is_cell(cell) for cell in cells)
        assert types.solution(cells).num_cells == num_cells
        patterns = enumerate_patterns(types, bounds, num_cells, 10**5)
        assert patterns is not None
        assert (
            solve(cover_model(types, patterns, num_cells), time_limit_s=20).x
            is not None
        )


def test_the_known_gap_of_one_is_proved_by_both_models() -> None:
    instance = PackingInstance(weight_I=[44] * 2 + [33] * 3 + [12] * 6, capacity=132)
    types = ItemTypes.of(instance)
    bound = bound_of(Knapsack(types), types.weight_K, types.demand_K)
    verdict = decide(types, 2, [bound], time.monotonic() + 30)
    claimed = verdict.bound()
    assert claimed is not None
    assert (claimed.kind, claimed.value) == ("solver", 3)
    assert claimed.evidence["agreed"] == ["cover", "flow"]
    found = decide(types, 3, [bound], time.monotonic() + 30)
    assert found.cells is not None
    assert found.bound() is None
    assert types.solution(found.cells).num_cells == oracle.min_cells(instance)


def test_no_bound_without_time() -> None:
    instance = PackingInstance(weight_I=[44] * 2 + [33] * 3 + [12] * 6, capacity=132)
    types = ItemTypes.of(instance)
    bound = bound_of(Knapsack(types), types.weight_K, types.demand_K)
    verdict = decide(types, 2, [bound], time.monotonic())
    assert verdict.bound() is None
    assert verdict.answers == {}


@pytest.mark.parametrize("limit", [0, 1])
def test_too_many_patterns_give_no_list(limit: int) -> None:
    types = ItemTypes.of(PackingInstance(weight_I=[3, 3, 2, 2, 1], capacity=6))
    bound = bound_of(Knapsack(types), types.weight_K, types.demand_K)
    assert enumerate_patterns(types, [bound], 2, limit) is None


def test_an_infeasible_model_is_said_to_be_so() -> None:
    types = ItemTypes.of(PackingInstance(weight_I=[6, 6, 6], capacity=10))
    network = full_network(types, 2)
    result = solve(flow_model(network), time_limit_s=20)
    assert result.termination is Termination.INFEASIBLE
