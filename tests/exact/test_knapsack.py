"""The compiled knapsack agrees with brute force and only returns feasible patterns."""

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.exact import knapsack as module
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack, Pricing
from rpopt.packing.instance import PackingInstance
from tests.oracle import packing as oracle


def random_instance(
    rng: np.random.Generator, *, limited: bool = False
) -> PackingInstance:
    num = int(rng.integers(1, 11))
    capacity = int(rng.integers(3, 40)) * int(rng.choice([1, 4]))
    lightest = int(rng.choice([1, capacity // 4 + 1]))
    weight_I = rng.integers(lightest, capacity + 1, num)
    if not limited:
        return PackingInstance(weight_I=weight_I, capacity=capacity)
    return PackingInstance(
        weight_I=weight_I,
        capacity=capacity,
        num_samples_I=rng.integers(1, 3, num),
        max_samples_per_cell=int(rng.integers(2, 5)),
    )


def check_patterns(types: ItemTypes, value_K: np.ndarray, pricing: Pricing) -> None:
    assert (pricing.pattern_QK @ value_K == pricing.value_Q).all()
    assert (pricing.pattern_QK <= types.demand_K).all()
    for pattern_K in pricing.pattern_QK:
        assert types.is_cell(np.repeat(np.arange(types.num_types), pattern_K))
    assert pricing.value_Q.max(initial=0) <= pricing.best


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("searched", [False, True])
def test_best_value_is_that_of_brute_force(
    monkeypatch: pytest.MonkeyPatch, *, limited: bool, searched: bool
) -> None:
    monkeypatch.setattr(module, "_FEW_ITEMS", 100 if searched else 0)
    rng = np.random.default_rng(int(limited) + 2 * int(searched))
    for _ in range(150):
        instance = random_instance(rng, limited=limited)
        types = ItemTypes.of(instance)
        scale = int(rng.choice([5, 1000, 2**40]))
        value_K = rng.integers(-scale // 4, scale, types.num_types)
        pricing = Knapsack(types).price(value_K)
        values = np.maximum(value_K, 0)[types.type_I].tolist()
        assert pricing.best == oracle.max_cell_value(instance, values)
        assert pricing.best == pricing.value_Q.max(initial=0)
        check_patterns(types, value_K, pricing)


@pytest.mark.parametrize("limited", [False, True])
def test_several_patterns_of_one_run(*, limited: bool) -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        types = ItemTypes.of(random_instance(rng, limited=limited))
        value_K = rng.integers(1, 1000, types.num_types)
        pricing = Knapsack(types).price(value_K, max_patterns=6)
        check_patterns(types, value_K, pricing)
        assert (np.diff(pricing.value_Q) > 0).all()
        assert pricing.value_Q[-1] == pricing.best
        assert len(np.unique(pricing.pattern_QK, axis=0)) == len(pricing.pattern_QK)


def test_more_slots_than_one_block() -> None:
    rng = np.random.default_rng(3)
    weight_I = rng.integers(20, 500, 400)
    types = ItemTypes.of(PackingInstance(weight_I=weight_I, capacity=1000))
    value_K = types.weight_K * 1000 + rng.integers(0, 30_000, types.num_types)
    pricing = Knapsack(types).price(value_K, max_patterns=40)
    best_W = np.zeros(types.capacity + 1, dtype=np.int64)
    for weight, value, copies in zip(
        types.weight_K, value_K, types.demand_K, strict=True
    ):
        for _ in range(copies):
            best_W[weight:] = np.maximum(best_W[weight:], best_W[:-weight] + value)
    assert pricing.best == best_W[-1]
    check_patterns(types, value_K, pricing)


def test_residual_demand_and_rounded_weights() -> None:
    rng = np.random.default_rng(11)
    for _ in range(40):
        types = ItemTypes.of(random_instance(rng))
        value_K = rng.integers(1, 1000, types.num_types)
        demand_K = rng.integers(0, types.demand_K + 1)
        knapsack = Knapsack(types)
        exact = knapsack.price(value_K, demand_K=demand_K, max_patterns=3)
        assert (exact.pattern_QK <= demand_K).all()
        rough = knapsack.price(value_K, demand_K=demand_K, max_patterns=3, unit=3)
        check_patterns(types, value_K, rough)
        assert rough.best <= exact.best


def test_values_too_large_to_add_are_refused() -> None:
    types = ItemTypes.of(PackingInstance(weight_I=[1, 1], capacity=2))
    with pytest.raises(InstanceError, match="scale values"):
        Knapsack(types).price(np.array([2**61]))


def test_what_is_kept_stays_below_two_gibibytes() -> None:
    rng = np.random.default_rng(0)
    weight_I = rng.permutation(np.arange(2048, 65_536))[:8192]
    instance = PackingInstance(weight_I=weight_I, capacity=131_072)
    knapsack = Knapsack(ItemTypes.of(instance))
    values = knapsack.types.weight_K * 2**10
    assert knapsack.price(values, max_patterns=2).best == 131_072 * 2**10
    assert knapsack._memory.nbytes < 2**31


def test_without_memory_patterns_are_rough_and_the_best_value_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        instance = random_instance(rng)
        types = ItemTypes.of(instance)
        value_K = rng.integers(1, 1000, types.num_types)
        monkeypatch.setattr(module, "MEMORY_LIMIT_BYTES", 2**30)
        exact = Knapsack(types).price(value_K, max_patterns=2)
        monkeypatch.setattr(module, "MEMORY_LIMIT_BYTES", 4 * types.capacity)
        monkeypatch.setattr(module, "_LONGEST_STRIDE", 3)
        monkeypatch.setattr(module, "_STRIDE", 1)
        tight = Knapsack(types).price(value_K, max_patterns=2)
        assert tight.best == exact.best
        check_patterns(types, value_K, tight)
