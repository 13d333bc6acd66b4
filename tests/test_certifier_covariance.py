"""Outer approximation of the covariance form: bounds that hold, and that meet."""

import numpy as np
import pytest

from rpopt.certifier_covariance import certify_covariance
from rpopt.errors import InstanceError
from rpopt.placement.instance_covariance import (
    CovarianceInstance,
    evaluate_covariance,
    second_moments,
)
from tests.oracle.placement import partitions


def random_instance(
    seed: int, per_rank: int, ranks: int, *, layers: int = 1, scale: int = 1
) -> tuple[CovarianceInstance, np.ndarray]:
    rng = np.random.default_rng(seed)
    demand_NLE = scale * rng.integers(0, 9, (5, layers, per_rank * ranks))
    return second_moments(demand_NLE, ranks), demand_NLE


def smallest(demand_NE: np.ndarray, ranks: int) -> int:
    """Sum of squared loads, sample by sample: not by the moments."""
    num_experts = demand_NE.shape[1]
    return min(
        sum(sum(row[e] for e in part) ** 2 for row in demand_NE.tolist() for part in x)
        for x in partitions(range(num_experts), num_experts // ranks)
    )


@pytest.mark.parametrize(("per_rank", "ranks"), [(2, 2), (3, 2), (2, 3), (1, 4)])
def test_bound_meets_the_smallest_sum(per_rank: int, ranks: int) -> None:
    instance, demand_NLE = random_instance(7, per_rank, ranks, layers=2)
    told: list[tuple[int, int]] = []
    proofs = certify_covariance(
        instance, time_limit_s=120, progress=lambda *pair: told.append(pair)
    )
    for layer, proof in enumerate(proofs):
        assert proof.closed
        assert proof.termination == "bound met"
        assert proof.bound.kind == "solver"
        assert proof.bound.value == smallest(demand_NLE[:, layer], ranks)
        one = CovarianceInstance(
            moment_LEF=instance.moment_LEF[layer : layer + 1], num_ep_ranks=ranks
        )
        assert evaluate_covariance(one, proof.placement).tolist() == [proof.upper]
    assert all(lower <= upper for lower, upper in told)
    assert sum(proof.num_solves for proof in proofs) == len(told)


def test_large_numbers_leave_the_tolerance_open() -> None:
    instance, demand_NLE = random_instance(7, 2, 3, scale=10**6)
    (proof,) = certify_covariance(instance, time_limit_s=120)
    best = smallest(demand_NLE[:, 0], 3)
    assert proof.upper == best
    assert (1 - 1e-6) * best < proof.bound.value <= best


def test_without_time_the_descent_stands_alone() -> None:
    instance, demand_NLE = random_instance(3, 2, 3)
    (proof,) = certify_covariance(instance, time_limit_s=0)
    assert (proof.bound.value, proof.num_solves) == (0, 0)
    assert proof.termination == "time limit"
    assert proof.upper >= smallest(demand_NLE[:, 0], 3)
    with pytest.raises(InstanceError, match="must be >= 0"):
        certify_covariance(instance, time_limit_s=-1)
