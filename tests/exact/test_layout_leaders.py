"""The leader bound: never above brute force, tampering shows, and it does improve."""

import copy
import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.exact.layout_leaders import leader_bound
from rpopt.exact.leader_master import Master
from rpopt.highs import process
from rpopt.layout.bounds import recheck, volume
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.leader_bound import (
    NAME,
    LeaderClass,
    Multipliers,
    _cheapest,
    fewest_cells,
    forced_leaders,
    leader_order,
    value,
)
from rpopt.packing.instance import PackingInstance
from tests.formulations import oracle


def random_multipliers(
    rng: np.random.Generator, instance: LayoutInstance
) -> Multipliers:
    """Any multipliers prove a bound: these are random ones."""
    h, unit = instance.shard_size, int(rng.integers(1, 5))
    num = instance.num_items
    starts = [0, *sorted(set(rng.integers(1, num, int(rng.integers(0, 4))).tolist()))]
    classes = []
    for start in starts:
        theta = []
        for layer, weight in enumerate(instance.layer_weight_ticks_L.tolist()):
            for q in range(instance.load_ILP.shape[2]):
                share = int(rng.integers(0, weight + 1))
                weight -= share
                theta.append((layer, q, share))
        alpha, room = int(rng.integers(0, unit + 1)), int(rng.integers(0, 3))
        classes.append(
            LeaderClass(start=start, alpha=alpha, room=room, theta=tuple(theta))
        )
    price_I = rng.integers(-3, 12 * h * unit, num)
    return Multipliers(
        attention_class=int(rng.integers(instance.attention_ticks_IC.shape[1])),
        denominator=h * unit,
        price_I=tuple(price_I.tolist()),
        classes=tuple(classes),
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


def fuzz_leader_bound(seeds: range, **fields: Any) -> tuple[int, int]:
    tried = improved = 0
    for seed in seeds:
        instance = oracle.random_layout(np.random.default_rng(seed), **fields)
        best = oracle.smallest_j(instance)
        if best is None:
            continue
        floor = volume(instance).value
        bound = leader_bound(instance, floor=floor, time_limit_s=20)
        if bound is not None:
            assert floor < bound.value <= best, seed
            assert recheck(instance, bound) == bound.value
            improved += 1
        tried += 1
    return tried, improved


def test_leader_bounds_never_exceed_brute_force() -> None:
    tried, improved = fuzz_leader_bound(range(12))
    assert tried > 5
    assert improved > 2


@pytest.mark.slow
def test_leader_bounds_never_exceed_brute_force_at_length() -> None:
    tried, improved = fuzz_leader_bound(range(100, 340))
    assert tried > 120
    assert improved > 40


def test_the_packing_bound_behind_forced_leaders() -> None:
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


def test_the_cheapest_leaders() -> None:
    """Greedy equals trying every number of leaders per class."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = int(rng.integers(1, 5))
        size_K = rng.integers(1, 4, size)
        groups = int(rng.integers(1, size_K.sum() + 1))
        forced = np.minimum(np.cumsum(rng.integers(0, 2, size)), np.cumsum(size_K))
        most_K = [groups, *(groups - np.minimum(forced, groups))[:-1].tolist()]
        cost_K = rng.integers(-9, 9, size)
        choices = itertools.product(*(range(n + 1) for n in size_K))
        fair = [
            np.dot(y, cost_K)
            for y in choices
            if sum(y) == groups and all(sum(y[k:]) <= m for k, m in enumerate(most_K))
        ]
        assert _cheapest(cost_K.tolist(), size_K.tolist(), most_K) == min(fair)


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


def test_it_improves_where_a_long_item_wastes_a_group() -> None:
    instance = long_item()
    # 154 of attention over 2 cells, 18 copies at the busier rank. But the long item's
    # group has a peak of 100, and beside it there is room for 10 of the other 18
    # tokens; the other 8 are 24 of attention in 2 cells.
    floor = volume(instance)
    assert floor.value == 77 + 4 * 18
    bound = leader_bound(instance, floor=floor.value, time_limit_s=20)
    best = oracle.smallest_j(instance)
    assert bound is not None
    assert best is not None
    assert bound.value == 100 + 24 // 2 + 4 * 18 <= best
    assert forced_leaders(instance, leader_order(instance, 0)[:1]) == 1


def test_nothing_above_the_floor_is_no_bound() -> None:
    instance = long_item()
    assert leader_bound(instance, floor=10**6, time_limit_s=20) is None
    even = dataclasses.replace(instance, attention_ticks_IC=np.ones((7, 1), int))
    even = dataclasses.replace(even, load_ILP=np.ones((7, 1, 2), dtype=np.int32))
    floor = volume(even).value
    assert leader_bound(even, floor=floor, time_limit_s=20) is None


def test_no_time_is_no_bound() -> None:
    assert leader_bound(long_item(), floor=0, time_limit_s=0) is None


def test_a_budget_that_ends_inside_a_program_is_kept() -> None:
    rng = np.random.default_rng(0)
    weight_I = rng.integers(1, 1000, 400)
    load_ILP = rng.integers(0, 100, (400, 24, 8)).astype(np.int32)
    instance = dataclasses.replace(
        long_item(),
        weight_I=weight_I,
        num_samples_I=np.ones(400, dtype=np.int64),
        attention_ticks_IC=(weight_I**2)[:, None],
        load_ILP=load_ILP,
        layer_weight_ticks_L=np.full(24, 100),
        token_cap=20_000,
        num_rows=8,
    )
    began_s = time.monotonic()
    leader_bound(instance, floor=0, time_limit_s=0.5)
    assert time.monotonic() - began_s < 2.5


def test_a_budget_that_ends_while_a_program_is_loaded_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    monkeypatch.setattr(process, "CHILD_SCRIPT", script)
    began_s = time.monotonic()
    assert leader_bound(long_item(), floor=0, time_limit_s=0.5) is None
    assert time.monotonic() - began_s < 2.5


def test_the_program_is_the_bound() -> None:
    """Its optimum is what the rounded duals prove, but for the rounding."""
    from rpopt.highs import LpHandle

    rng = np.random.default_rng(5)
    compared = 0
    for _ in range(10):
        instance = oracle.random_layout(rng)
        master = Master(instance, 0, min(3, instance.num_items))
        with LpHandle(master.model(), interior_point=True) as handle:
            result = handle.solve(20)
        if result.row_duals is None or result.objective is None:
            continue
        proved = value(instance, master.multipliers(result.row_duals))
        shards_ticks = result.objective * master.unit / instance.num_shards
        assert proved == pytest.approx(instance.offset_ticks + shards_ticks, abs=1.1)
        compared += 1
    assert compared > 5


@pytest.fixture(scope="module")
def arithmetic() -> tuple[LayoutInstance, Bound]:
    instance = long_item()
    bound = leader_bound(instance, floor=0, time_limit_s=20)
    assert bound is not None
    return instance, bound


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
        (["classes"], []),
        (["classes", 0, "start"], 1),
        (["classes", 1, "start"], 0),
        (["classes", 1, "start"], 7),
        (["classes", 0, "alpha"], -1),
        (["classes", 1, "alpha"], 2**30),
        (["classes", 0, "room"], -1),
        (["classes", 0, "room"], 0.0),
        (["classes", 0, "theta"], [[0, 0, 5]]),
        (["classes", 0, "theta"], [[0, 0, -1]]),
        (["classes", 0, "theta"], [[1, 0, 1]]),
        (["classes", 0, "theta"], [[0, 2, 1]]),
        (["classes", 0, "theta"], "none"),
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
    sole = int(leader_order(instance, 0)[0])  # whose price is paid and spent again
    for i in range(instance.num_items):
        step = 10 * bound.evidence["denominator"]
        for change in (-step, step):
            price = bound.evidence["price_I"][i] + change
            found = recheck(instance, tampered(bound, ["price_I", i], price))
            assert (found != bound.value) == (i != sole)
            assert found <= best
    missing = dataclasses.replace(bound, evidence={})
    with pytest.raises(CertificateError, match="does not hold"):
        recheck(instance, missing)
    assert bound.name == NAME
