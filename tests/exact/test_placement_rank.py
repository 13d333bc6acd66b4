"""One-rank bounds from linear programs, against all placements of small layers."""

import numpy as np
import pytest

from rpopt.exact.placement_rank import rank_bounds
from rpopt.placement.bounds_window import (
    aggregate_bound,
    groups_bound,
    window_bounds,
)
from rpopt.placement.rank_bound import NAME, recheck
from tests.placement.cases_window import (
    optimal_total,
    random_instance,
    window_instance,
)

SHAPES = [(3, 2), (2, 3), (4, 2), (2, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_between_the_known_bounds_and_the_optimum(shape: tuple[int, int]) -> None:
    per_rank, ranks = shape
    better = 0
    for seed in range(3):
        instance = random_instance(
            seed, groups=4, layers=1, per_rank=per_rank, ranks=ranks
        )
        (bound,) = rank_bounds(instance, experts=per_rank * ranks)
        known = max(groups_bound(instance)[0], aggregate_bound(instance)[0])
        assert known <= bound.value <= optimal_total(instance, 0)
        assert bound.kind == "arithmetic"
        if bound.name == NAME:
            assert recheck(instance, bound) == bound.value > known
            better += 1
    assert better > 0


def test_where_nothing_is_left_to_prove() -> None:
    empty = window_instance(np.zeros((2, 1, 4), dtype=int), 2)
    for instance in (
        empty,
        random_instance(0, per_rank=1, ranks=4),
        random_instance(0, per_rank=4, ranks=1),
    ):
        bounds, known = rank_bounds(instance), window_bounds(instance)
        assert [b.value for b in bounds] == [b.value for b in known]


def test_without_time_the_known_bounds_stand() -> None:
    instance = random_instance(2)
    bounds = rank_bounds(instance, time_limit_s=0)
    assert [b.name for b in bounds] == [b.name for b in window_bounds(instance)]
