"""The rules that fill cells keep every limit, and are the ones they are named after."""

from typing import Any

import numpy as np
import pytest

from rpopt.differencing import largest_differencing
from rpopt.layout.cells import (
    first_fit_decreasing,
    greedy,
    next_fit,
    repair,
)
from rpopt.layout.instance import LayoutInstance
from rpopt.records import Int64Array
from tests.layout.cases import instance


def weights(weight_I: list[int], cap: int, **changes: Any) -> LayoutInstance:
    """4 cells: 2 rows x 2 ranks; attention is the square of the weight."""
    fields: dict[str, Any] = {
        "weight_I": weight_I,
        "num_samples_I": [1] * len(weight_I),
        "attention_ticks_IC": [[w * w] for w in weight_I],
        "load_ILP": np.zeros((len(weight_I), 1, 1)),
        "token_cap": cap,
    }
    return instance(**{**fields, **changes})


def sums(cell_I: Int64Array, value_I: Any) -> list[int]:
    return np.bincount(cell_I, weights=value_I).astype(int).tolist()


def test_greedy_is_longest_processing_time_first() -> None:
    problem = weights([3, 9, 4, 8, 7, 6, 5, 2], cap=20)
    cell_I = greedy(problem, problem.weight_I)
    assert cell_I is not None
    assert cell_I.tolist() == [1, 0, 2, 1, 2, 3, 3, 0]
    assert sums(cell_I, problem.weight_I) == [11, 11, 11, 11]


def test_greedy_goes_on_to_the_next_cheapest_cell_with_room() -> None:
    problem = weights([6, 5, 4, 4, 1, 4], cap=8)
    cell_I = greedy(problem, np.array([10, 10, 10, 5, 3, 1]))
    assert cell_I is not None
    assert cell_I.tolist() == [0, 1, 2, 3, 3, 2]


def test_greedy_gives_up_when_an_item_has_no_room() -> None:
    assert greedy(weights([5, 5, 5, 5, 5], cap=9), np.ones(5, dtype=np.int64)) is None


def test_greedy_leaves_no_cell_empty_for_free_items() -> None:
    problem = weights([9, 1, 1, 1, 1, 1], cap=14)
    cell_I = greedy(problem, np.zeros(6, dtype=np.int64))
    assert cell_I is not None
    assert sorted(set(cell_I.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("changes", [{"max_samples_per_cell": 2}, {}])
def test_greedy_counts_samples(changes: dict[str, Any]) -> None:
    problem = weights([9, 1, 1, 1, 1, 1, 1, 1], cap=99, **changes)
    cell_I = greedy(problem, problem.weight_I, max_samples=2 if not changes else None)
    assert cell_I is not None
    assert sums(cell_I, None) == [2, 2, 2, 2]


def test_first_fit_decreasing() -> None:
    problem = weights([2, 7, 3, 6, 5, 4], cap=10)
    cell_I = first_fit_decreasing(problem)
    assert cell_I is not None
    assert cell_I.tolist() == [2, 0, 0, 1, 2, 1]


def test_next_fit_keeps_the_order_and_looks_at_one_cell() -> None:
    problem = weights([2, 7, 3, 6, 5, 4], cap=10)
    cell_I = next_fit(problem)
    assert cell_I is not None
    assert cell_I.tolist() == [0, 0, 1, 1, 2, 2]
    assert next_fit(weights([6, 5, 6, 5, 6, 5], cap=10)) is None
    assert next_fit(weights([1] * 6, cap=9, max_samples_per_cell=1)) is None


def test_differencing_balances_better_than_greedy() -> None:
    rng = np.random.default_rng(0)
    cost_I = rng.lognormal(8, 0.8, 400).astype(np.int64)
    spread = {}
    problem = weights(cost_I.tolist(), cap=int(cost_I.sum()))
    for name, part_I in (
        ("differencing", largest_differencing(cost_I, 4)),
        ("greedy", greedy(problem, cost_I)),
    ):
        assert part_I is not None
        spread[name] = np.ptp(sums(part_I, cost_I))
    assert spread["differencing"] < spread["greedy"] / 2


def test_repair_moves_the_light_items_of_overfull_cells() -> None:
    problem = weights([5, 4, 3, 2, 2, 1], cap=7)
    cell_I = repair(problem, np.array([0, 0, 1, 2, 0, 3]))
    assert cell_I is not None
    assert cell_I.tolist() == [0, 3, 1, 2, 0, 3]


def test_repair_leaves_good_cells_alone() -> None:
    problem = weights([5, 4, 3, 2, 2, 1], cap=7)
    cell_I = np.array([0, 1, 2, 0, 3, 3])
    repaired = repair(problem, cell_I)
    assert repaired is not None
    assert repaired.tolist() == cell_I.tolist()


def test_repair_gives_up_when_stuck() -> None:
    problem = weights([5, 5, 5, 5, 3, 3], cap=7)
    assert repair(problem, np.zeros(6, dtype=np.int64)) is None
