"""The covariance form: linearised and outer approximation against all placements."""

from typing import Any

import numpy as np
import pytest

from formulations import placement_covariance as form
from rpopt.errors import InstanceError
from rpopt.placement.covariance import place_covariance
from rpopt.placement.instance_covariance import (
    CovarianceInstance,
    evaluate_covariance,
    second_moments,
)
from rpopt.plans import Placement
from tests.formulations.solving import optimum
from tests.oracle.placement import partitions


def random_case(seed: int, per_rank: int, ranks: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 9, (5, 1, per_rank * ranks))


def smallest(demand_NLE: Any, ranks: int) -> int:
    """Sum of squared loads, sample by sample: not by the moments."""
    demand = demand_NLE[:, 0].tolist()
    num_experts = len(demand[0])
    return min(
        sum(sum(row[e] for e in part) ** 2 for row in demand for part in parts)
        for parts in partitions(range(num_experts), num_experts // ranks)
    )


SHAPES = [(2, 2), (3, 2), (2, 3), (1, 4)]


@pytest.mark.parametrize("seed", range(4))
def test_linearised_and_descent(seed: int) -> None:
    per_rank, ranks = SHAPES[seed]
    demand = random_case(seed, per_rank, ranks)
    instance = second_moments(demand, ranks)
    model = form.build_linear(instance, layer=0)
    best = optimum(model)
    found = form.solution(instance, [model])
    assert best == smallest(demand, ranks)
    assert evaluate_covariance(instance, found).tolist() == [best]
    start = Placement.identity(1, per_rank * ranks, ranks)
    near = evaluate_covariance(instance, place_covariance(instance, start))
    assert best <= near[0] <= evaluate_covariance(instance, start)[0]


def test_the_quadratic_statement_has_the_same_value() -> None:
    instance = second_moments(random_case(0, 2, 2), 2)
    linear = form.build_linear(instance, layer=0)
    best = optimum(linear)
    quadratic = form.build_quadratic(instance, layer=0)
    for key in quadratic.EP:
        quadratic.x[key].value = round(linear.x[key].value)
    assert round(quadratic.objective.expr()) == best


def test_descent_ends_where_no_swap_helps() -> None:
    instance = second_moments(random_case(3, 4, 3), 3)
    found = place_covariance(instance, Placement.identity(1, 12, 3))
    total = evaluate_covariance(instance, found)[0]
    for a in range(12):
        for b in range(a):
            rank_LE = found.rank_LE
            rank_LE[0, [a, b]] = rank_LE[0, [b, a]]
            swapped = Placement.from_ranks(rank_LE, 3)
            assert evaluate_covariance(instance, swapped)[0] >= total


def test_bad_moments_are_refused() -> None:
    eye = np.eye(4, dtype=np.int64)[None]
    lopsided = eye.copy()
    lopsided[0, 0, 1] = 1
    for moment, ranks, message in (
        (lopsided, 2, "not symmetric"),
        (eye, 3, "cannot be spread"),
        (eye * 2**60, 2, "divide the demand"),
    ):
        with pytest.raises(InstanceError, match=message):
            CovarianceInstance(moment_LEF=moment, num_ep_ranks=ranks)
    with pytest.raises(InstanceError, match="too large to square"):
        second_moments(np.full((1, 1, 4), 2**31), 2)
    with pytest.raises(InstanceError, match="layer 1; there are 1"):
        form.build_linear(second_moments(random_case(0, 2, 2), 2), layer=1)
