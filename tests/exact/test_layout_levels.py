"""Level bounds: never above brute force, tampering shows, and they do improve."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.exact import layout_levels
from rpopt.exact.layout_levels import level_bound
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.level_bound import (
    NAMES,
    Level,
    Multipliers,
    fewest_cells,
    forced_groups,
    recheck,
    value,
)
from rpopt.packing.instance import PackingInstance
from tests.formulations import oracle


def random_multipliers(
    rng: np.random.Generator, instance: LayoutInstance
) -> Multipliers:
    """Any multipliers prove a bound: these are random ones."""
    h, unit = instance.shard_size, int(rng.integers(1, 5))
    lead = int(rng.integers(instance.attention_ticks_IC.shape[1]))
    top = int(instance.attention_ticks_IC[:, lead].max()) + 2
    above = [-1, *sorted(set(rng.integers(0, top, int(rng.integers(0, 4))).tolist()))]
    levels = []
    for k, start in enumerate(above):
        theta = []
        for layer, weight in enumerate(instance.layer_weight_ticks_L.tolist()):
            for q in range(instance.load_ILP.shape[2]):
                share = int(rng.integers(0, weight + 1))
                weight -= share
                theta.append((layer, q, share))
        alpha = int(rng.integers(0, unit + 1 + (k < len(above) - 1)))
        levels.append(Level(above=start, alpha=alpha, theta=tuple(theta)))
    price_I = rng.integers(-3, 12 * h * unit, instance.num_items)
    return Multipliers(
        attention_class=lead,
        denominator=h * unit,
        price_I=tuple(price_I.tolist()),
        levels=tuple(levels),
    )


def fuzz_any_multipliers(seeds: range) -> int:
    tried = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        instance = oracle.random_layout(rng)
        best = oracle.smallest_j(instance)
        if best is None:
            continue
        for _ in range(10):
            multipliers = random_multipliers(rng, instance)
            assert value(instance, multipliers) <= best, (seed, multipliers)
            tried += 1
    return tried


def test_any_multipliers_give_a_bound() -> None:
    assert fuzz_any_multipliers(range(150)) > 500


@pytest.mark.slow
def test_any_multipliers_give_a_bound_at_length() -> None:
    assert fuzz_any_multipliers(range(1000, 6000)) > 20_000


def fuzz_level_bound(seeds: range, **fields: Any) -> tuple[int, int]:
    tried = improved = 0
    for seed in seeds:
        instance = oracle.random_layout(np.random.default_rng(seed), **fields)
        best = oracle.smallest_j(instance)
        if best is None:
            continue
        bounds = level_bound(instance, time_limit_s=20)
        for bound in bounds:
            assert bound.value <= best, (seed, bound.name)
            if bound.name in NAMES:
                assert recheck(instance, bound) == bound.value
        tried += 1
        improved += bounds[-1].value > bounds[0].value
    return tried, improved


def test_level_bounds_never_exceed_brute_force() -> None:
    tried, improved = fuzz_level_bound(range(8))
    assert tried > 3
    assert improved > 0


@pytest.mark.slow
def test_level_bounds_never_exceed_brute_force_at_length() -> None:
    tried, improved = fuzz_level_bound(range(100, 240))
    assert tried > 70
    assert improved > 10


def test_the_packing_bound_behind_forced_groups() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        instance = oracle.random_packing(rng)
        free = PackingInstance(weight_I=instance.weight_I, capacity=instance.capacity)
        cells = fewest_cells(free.weight_I, free.capacity)
        assert cells <= oracle.fewest_cells(free)
        assert cells >= -(-free.weight_I.sum() // free.capacity)
    assert fewest_cells(np.array([6, 6, 6, 5, 5]), 10) == 4
    assert fewest_cells(np.array([], dtype=np.int64), 10) == 0
    assert fewest_cells(np.array([7, 7, 4, 4, 4]), 10) == 4


def long_item() -> LayoutInstance:
    """Two groups of two cells; one item is as long as two cells should be."""
    weight_I = np.array([10, 3, 3, 3, 3, 3, 3])
    load_ILP = np.zeros((7, 1, 2), dtype=np.int32)
    load_ILP[:, 0, 1] = weight_I
    load_ILP[0, 0] = [10, 0]
    return LayoutInstance(
        weight_I=weight_I,
        num_samples_I=np.ones(7, dtype=np.int64),
        attention_ticks_IC=(weight_I**2)[:, None],
        load_ILP=load_ILP,
        layer_weight_ticks_L=np.array([4]),
        offset_ticks=0,
        unit_ticks=100,
        num_rows=2,
        token_cap=10,
        shard_of_rank_D=np.array([0, 0]),
    )


def test_each_step_improves_where_a_long_item_wastes_a_group() -> None:
    instance = long_item()
    bounds = {b.name: b.value for b in level_bound(instance, time_limit_s=20)}
    # 154 of attention over 2 cells, 18 copies at the busier rank; the long item alone
    # needs a peak of 100, and beside it a cell of 10 tokens holds at most 27.
    assert bounds["volume"] == 77 + 4 * 18
    assert bounds["levels_attention"] > bounds["volume"]
    best = oracle.smallest_j(instance)
    assert best is not None
    assert bounds["levels_attention"] < max(bounds.values()) <= best
    assert forced_groups(instance, 0, 99) == 1
    assert forced_groups(instance, 0, 100) == 0


def test_a_window_without_forced_groups_has_the_volume_bound_alone() -> None:
    instance = dataclasses.replace(long_item(), attention_ticks_IC=np.ones((7, 1), int))
    bounds = level_bound(instance, time_limit_s=5)
    assert [b.name for b in bounds] == ["volume"]


def test_no_time_leaves_the_volume_bound() -> None:
    bounds = level_bound(long_item(), time_limit_s=0)
    assert bounds[0].value == 77 + 4 * 18


@pytest.fixture(scope="module")
def arithmetic() -> tuple[LayoutInstance, Bound]:
    instance = long_item()
    bounds = level_bound(instance, time_limit_s=20)
    return instance, [b for b in bounds if b.name in NAMES][-1]


def tampered(bound: Bound, path: list[Any], new: Any) -> Bound:
    evidence: Any = copy.deepcopy(dict(bound.evidence))
    inner = evidence
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return dataclasses.replace(bound, evidence=evidence)


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (["denominator"], 3),
        (["denominator"], 0),
        (["attention_class"], 1),
        (["attention_class"], True),
        (["price_I", 0], 0.5),
        (["price_I"], [1, 2]),
        (["levels"], []),
        (["levels", 0, "above"], 0),
        (["levels", 1, "above"], -1),
        (["levels", 0, "alpha"], -1),
        (["levels", 1, "alpha"], 2**30),
        (["levels", 0, "theta"], [[0, 0, 5]]),
        (["levels", 0, "theta"], [[0, 0, -1]]),
        (["levels", 0, "theta"], [[1, 0, 1]]),
        (["levels", 0, "theta"], [[0, 2, 1]]),
        (["levels", 0, "theta"], "none"),
    ],
)
def test_evidence_out_of_range_is_refused(
    arithmetic: tuple[LayoutInstance, Bound], path: list[Any], new: Any
) -> None:
    instance, bound = arithmetic
    with pytest.raises(CertificateError, match="does not hold"):
        recheck(instance, tampered(bound, path, new))


def test_changed_prices_and_values_show(
    arithmetic: tuple[LayoutInstance, Bound],
) -> None:
    instance, bound = arithmetic
    best = oracle.smallest_j(instance)
    assert best is not None
    for i in range(instance.num_items):
        step = 10 * bound.evidence["denominator"]
        for change in (-step, step):
            price = bound.evidence["price_I"][i] + change
            found = recheck(instance, tampered(bound, ["price_I", i], price))
            assert found != bound.value
            assert found <= best
    missing = dataclasses.replace(bound, evidence={})
    with pytest.raises(CertificateError, match="does not hold"):
        recheck(instance, missing)


def test_the_best_pattern_is_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        weight_I, worth_I = rng.integers(1, 9, 7), rng.normal(1, 2, 7)
        found = list(layout_levels.best_pattern(worth_I, weight_I, 15))
        assert weight_I[found].sum() <= 15
        every = [
            worth_I[[i for i in range(7) if mask >> i & 1]].sum()
            for mask in range(128)
            if weight_I[[i for i in range(7) if mask >> i & 1]].sum() <= 15
        ]
        assert worth_I[found].sum() == pytest.approx(max(every))
