"""Lower bounds: never above the optimum, and recomputed from their evidence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.packing import PackingInstance, bounds
from rpopt.packing.dual_feasible import STEPS, apply
from rpopt.packing.knapsack import dual_weights, max_cell_value
from tests.oracle import packing as oracle
from tests.packing.examples import make, tiny


@pytest.mark.parametrize("seed", range(150))
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    instance = tiny(seed)
    optimum = oracle.min_cells(instance)
    values = np.random.default_rng(seed).integers(0, 50, instance.num_items)
    found = [method(instance) for method in bounds.METHODS.values()]
    found += [dual_weights(instance, values), dual_weights(instance, instance.weight_I)]
    for bound in found:
        assert 0 <= bound.value <= optimum
        assert bounds.recheck(instance, bound) == bound.value
    l1, l2, dff = found[:3]
    assert 1 <= l1.value <= l2.value <= dff.value


def brute_l2(weights: list[int], capacity: int) -> int:
    """L2 as Martello and Toth state it, over every threshold."""
    best = 0
    for alpha in range(capacity // 2 + 1):
        n1 = [w for w in weights if w > capacity - alpha]
        n2 = [w for w in weights if capacity - alpha >= w > capacity / 2]
        n3 = [w for w in weights if capacity / 2 >= w >= alpha]
        spill = sum(n3) - (len(n2) * capacity - sum(n2))
        best = max(best, len(n1) + len(n2) + max(0, -(-spill // capacity)))
    return best


@pytest.mark.parametrize("seed", range(100))
def test_l2_is_the_published_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, 60))
    weights = rng.integers(1, capacity + 1, int(rng.integers(1, 40))).tolist()
    assert bounds.l2(make(weights, capacity)).value == brute_l2(weights, capacity)


@pytest.mark.parametrize(
    ("weights", "values"),
    [
        ([6, 6, 6], (2, 3, 3)),
        ([5, 5, 5, 3], (2, 2, 2)),
        ([10, 1], (2, 2, 2)),
        ([4, 4, 4, 4, 4], (2, 2, 3)),
    ],
)
def test_known_values(weights: list[int], values: tuple[int, int, int]) -> None:
    instance = make(weights, 10)
    assert tuple(m(instance).value for m in bounds.METHODS.values()) == values


def test_samples_are_a_resource_too() -> None:
    instance = make([1] * 10, 100, max_samples_per_cell=3)
    assert bounds.l1(instance).value == 4
    assert bounds.l1(instance).evidence["resource"] == "samples"
    bundles = make(
        [1] * 4, 100, num_samples_I=np.array([3, 3, 3, 3]), max_samples_per_cell=5
    )
    assert bounds.l1(bundles).value == 3
    assert bounds.l2(bundles).value == 4


@pytest.mark.parametrize("capacity", [*range(1, 16), 24, 30])
def test_every_step_is_dual_feasible(capacity: int) -> None:
    """No multiset that fits weighs more than the new capacity afterwards."""
    ranges = {
        "mt": range((capacity + 1) // 2 + 1),
        "fs1": range(1, 12),
        "ccm": range(1, capacity // 2 + 1),
    }
    for name, parameters in ranges.items():
        for parameter in parameters:
            weight_M, new = STEPS[name](np.arange(capacity + 1), capacity, parameter)
            assert np.all(np.diff(weight_M) >= 0)
            assert weight_M[0] == 0
            assert fullest(weight_M.tolist(), capacity) <= new


def fullest(value: list[int], capacity: int) -> int:
    best = [0] * (capacity + 1)
    for room in range(1, capacity + 1):
        best[room] = max(value[w] + best[room - w] for w in range(1, room + 1))
    return best[capacity]


@pytest.mark.parametrize(
    "chain",
    [
        [["ccm", 0]],
        [["ccm", 6]],
        [["mt", -1]],
        [["mt", 6]],
        [["fs1", 0]],
        [["fs1", 2**55]],
        [["fs2", 1]],
        [["mt", True]],
        [["mt", "3"]],
    ],
)
def test_steps_outside_their_range(chain: list[Any]) -> None:
    with pytest.raises(InstanceError):
        apply(chain, np.array([3, 5]), 10)


def test_large_numbers_stay_exact() -> None:
    big = 2**46
    instance = make([big + 1] * 3, 2 * big + 1)
    assert [m(instance).value for m in bounds.METHODS.values()] == [2, 3, 3]


@pytest.mark.parametrize("seed", range(80))
def test_the_knapsack_is_exact(seed: int) -> None:
    instance = tiny(seed)
    values = np.random.default_rng(seed).integers(0, 9, instance.num_items).tolist()
    assert max_cell_value(instance, values) == oracle.max_cell_value(instance, values)


def test_dual_weights_can_beat_the_families() -> None:
    """No three of these fit, though one weighs less than a third of the capacity."""
    instance = make([3, 4, 4, 4, 4], 10)
    bound = dual_weights(instance, np.ones(5, dtype=np.int64))
    assert (bound.value, bound.evidence["max_cell_value"]) == (3, 2)
    assert bounds.dff(instance).value == 2


def test_dual_weights_use_the_sample_limit() -> None:
    instance = make([1] * 10, 100, max_samples_per_cell=3)
    assert dual_weights(instance, np.ones(10, dtype=np.int64)).value == 4


@pytest.mark.parametrize(
    "values", [[1, 1], [1, 1, -1], [2**61, 2**61, 0], [0.5, 1, 1], [[1, 1, 1]]]
)
def test_dual_weights_refuse_values(values: list[Any]) -> None:
    with pytest.raises(InstanceError):
        dual_weights(make([1, 2, 3], 10), np.array(values))


def test_a_capacity_beyond_the_exact_knapsack() -> None:
    with pytest.raises(InstanceError, match="pad_multiple"):
        dual_weights(make([2**40 - 1, 2**40 - 3], 2**40), np.array([1, 1]))
    padded = make([2**40, 2**39], 2**40)
    assert dual_weights(padded, np.array([2, 1])).value == 2


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"resource": "tokens"},
        {"resource": "samples", "chain": []},
        {"resource": ["tokens"], "chain": []},
        {"resource": "tokens", "chain": [["mt", 0]] * 5},
        {"resource": "tokens", "chain": [["mt"]]},
        {"resource": "tokens", "chain": 3},
        {"resource": "tokens", "chain": [[["mt"], 1]]},
        {"resource": "tokens", "chain": [["mt", 10**30]]},
    ],
)
def test_malformed_evidence(evidence: dict[str, Any]) -> None:
    bound = Bound(name="dff", kind="arithmetic", value=1, evidence=evidence)
    with pytest.raises(CertificateError, match="dff"):
        bounds.recheck(make([3, 4], 10), bound)


def test_too_small_a_cell_value_is_found_out() -> None:
    instance: PackingInstance = make([3, 4, 5], 7)
    bound = dual_weights(instance, np.array([3, 4, 5]))
    assert (bound.value, bound.evidence["max_cell_value"]) == (2, 7)
    lie = {**bound.evidence, "max_cell_value": 5}
    with pytest.raises(CertificateError, match="worth 7"):
        bounds.recheck(instance, replace(bound, evidence=lie))


def test_unknown_methods() -> None:
    bound = Bound(name="magic", kind="arithmetic", value=1)
    with pytest.raises(CertificateError, match="magic"):
        bounds.recheck(make([3], 10), bound)
