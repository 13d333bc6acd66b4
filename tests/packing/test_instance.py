"""The checker and the evaluator of packings."""

from typing import Any

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.packing.instance import MAX_TOTAL, PackingSolution, check, evaluate
from tests.packing.examples import make


def broken(cells: list[int]) -> list[str]:
    instance = make(
        [5, 4, 3, 2],
        9,
        num_samples_I=np.array([1, 1, 2, 1]),
        max_samples_per_cell=3,
    )
    found = check(instance, PackingSolution(cell_I=np.array(cells)))
    return [violation.constraint for violation in found]


@pytest.mark.parametrize(
    ("cells", "constraints"),
    [
        ([0, 0, 1, 1], []),
        ([0, 1, 0, 1], []),
        ([0, 1, 2, 3], []),
        ([0, 0, 1], ["every item once"]),
        ([0, 0, 1, 0], ["token cap"]),
        ([1, 0, 0, 0], ["samples per cell"]),
        ([0, 0, 2, 2], ["empty cell"]),
        ([1, 1, 2, 2], ["empty cell"]),
        ([0, 0, 1, 10**15], ["empty cell"]),
        ([0, 0, 0, 0], ["token cap", "samples per cell"]),
    ],
)
def test_each_broken_constraint_is_named(
    cells: list[int], constraints: list[str]
) -> None:
    assert broken(cells) == constraints


def test_cost() -> None:
    instance = make([5, 4, 3, 2], 10, num_ranks=2, row_multiple=3)
    cost = evaluate(instance, PackingSolution(cell_I=np.array([0, 1, 1, 2])))
    assert (cost.num_cells, cost.num_rows) == (3, 3)
    assert cost.fill == pytest.approx(14 / 30)


@pytest.mark.parametrize(("cells", "rows"), [(1, 2), (8, 2), (9, 4), (16, 4), (17, 6)])
def test_rows_come_in_multiples(cells: int, rows: int) -> None:
    assert make([1], 1, num_ranks=4, row_multiple=2).rows_for(cells) == rows


@pytest.mark.parametrize(
    ("weights", "capacity", "more"),
    [
        ([2**62, 2**62], 2**62, {}),
        ([1], 2**64, {}),
        ([1, 1], 2, {"num_samples_I": np.array([2**47, 2**48])}),
        ([1], 2, {"max_samples_per_cell": 10**20}),
    ],
)
def test_numbers_that_could_overflow_are_refused(
    weights: list[int], capacity: int, more: dict[str, Any]
) -> None:
    with pytest.raises(InstanceError, match="is supported"):
        make(weights, capacity, **more)
    assert make([MAX_TOTAL], MAX_TOTAL).num_items == 1
