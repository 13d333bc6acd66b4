"""Enumeration: equals brute force, and its bound holds however it is tampered with."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rpopt.certificate import Bound
from rpopt.certifier import certify
from rpopt.errors import CertificateError
from rpopt.layout import bounds, enumeration
from rpopt.layout.baselines import baselines
from rpopt.layout.certificates import recheck
from rpopt.layout.enumeration import MOST_ITEMS, MOST_STEPS
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from rpopt.stop import OutOfTimeError
from tests.formulations import oracle
from tests.layout.cases import random_instance
from tests.oracle.layout import optimal_ticks


def layout_of(instance: LayoutInstance, cell_I: np.ndarray) -> Layout:
    row_I, rank_I = np.divmod(cell_I, instance.num_ranks)
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)


def dealt(instance: LayoutInstance) -> Layout:
    return layout_of(instance, np.arange(instance.num_items) % instance.num_cells)


def solved(instance: LayoutInstance, start: Layout) -> tuple[int, Bound]:
    """Enumerate, check what comes back, and return its cost and the bound."""
    found = enumeration.enumeration(instance, start)
    assert found is not None
    layout, bound = found
    assert check(instance, layout) == []
    assert bounds.recheck(instance, bound) == bound.value
    return evaluate(instance, layout).j_ticks, bound


def fuzz(seeds: range, **fields: Any) -> int:
    """Compare with brute force from a random start; return how many could be."""
    tried = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        instance = oracle.random_layout(rng, **fields)
        layouts_AI = oracle.feasible_layouts(instance)
        if len(layouts_AI) == 0:
            continue
        best = int(oracle.layout_ticks(instance, layouts_AI).min())
        start = layout_of(instance, layouts_AI[rng.integers(len(layouts_AI))])
        ticks, bound = solved(instance, start)
        assert ticks == bound.value == best, seed
        tried += 1
    return tried


def test_equals_brute_force() -> None:
    assert fuzz(range(80)) > 50


@pytest.mark.parametrize("coupling", ["step", "row"])
@pytest.mark.parametrize("shape", [(2, 2, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4)])
def test_both_couplings_in_every_shape(
    coupling: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "SHAPES", [shape])
    assert fuzz(range(200, 208), coupling=coupling) > 2


@pytest.mark.slow
def test_equals_brute_force_at_length() -> None:
    assert fuzz(range(1000, 2500)) > 1000


@pytest.mark.parametrize("shard_D", [[0, 0, 0], [0, 1, 2], [0, 0, 1, 1]])
@pytest.mark.parametrize("coupling", ["step", "row"])
def test_against_the_other_oracle(shard_D: list[int], coupling: str) -> None:
    rng = np.random.default_rng(len(shard_D))
    instance = random_instance(rng, 6, 1, shard_D, coupling=coupling)
    assert solved(instance, dealt(instance))[0] == optimal_ticks(instance)


def test_lengths_only_and_several_classes() -> None:
    """Without layers, the cells of a group are all that matters."""
    rng = np.random.default_rng(1)
    empty_ILP = np.zeros((7, 0, 1), dtype=np.int32)
    instance = random_instance(
        rng, 7, 1, [0, 0, 0], load_ILP=empty_ILP, layer_weight_ticks_L=[]
    )
    assert solved(instance, dealt(instance))[0] == optimal_ticks(instance)


def twelve_items() -> LayoutInstance:
    return random_instance(np.random.default_rng(3), 12, 2, [0, 0, 1, 1])


def test_nothing_is_cheaper_than_what_it_finds() -> None:
    instance = twelve_items()
    ticks, _ = solved(instance, dealt(instance))
    rng = np.random.default_rng(0)
    for _ in range(300):
        cell_I = rng.permutation(np.arange(12) % instance.num_cells)
        layout = layout_of(instance, cell_I)
        if not check(instance, layout):
            assert evaluate(instance, layout).j_ticks >= ticks


def test_a_start_that_is_optimal_already_is_kept() -> None:
    instance = twelve_items()
    first = enumeration.enumeration(instance, dealt(instance))
    assert first is not None
    second = enumeration.enumeration(instance, first[0])
    assert second is not None
    assert second[0] is first[0]
    assert second[1] == first[1]


def test_what_takes_too_long_is_not_begun() -> None:
    instance = twelve_items()
    found = enumeration.enumeration(instance, dealt(instance))
    assert found is not None
    fewest = 64 << instance.num_items
    assert enumeration.enumeration(instance, found[0], most_steps=fewest // 8) is None
    many = random_instance(np.random.default_rng(3), MOST_ITEMS + 1, 1, [0, 0])
    assert enumeration.enumeration(many, dealt(many)) is None


def test_a_search_that_ends_early_has_raised_the_bound() -> None:
    """Limits rise from the bound; the last one may take more steps than are allowed."""
    instance = twelve_items()
    best, bound = solved_from(instance, 10**9)
    partial = 0
    for steps in range(200_000, 2_000_000, 20_000):
        found = enumeration.enumeration(instance, dealt(instance), most_steps=steps)
        if found is not None and found[1].value < best:
            partial += 1
            assert bounds.recheck(instance, found[1]) == found[1].value
            assert evaluate(instance, found[0]).j_ticks >= best
    assert partial
    assert bound.value == best


def test_the_clock_ends_it_with_the_bound_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever the deadline passes: at the first look, the second, and so on."""
    instance, values = twelve_items(), set()
    best, _ = solved_from(instance, 10**9)
    monkeypatch.setattr(enumeration, "_STEPS_PER_PORTION", 10**4)
    for looks in range(200):
        left = iter(range(looks))

        def look(deadline_s: float, left: Iterator[int] = left) -> None:
            assert deadline_s == 1.0
            if next(left, None) is None:
                raise OutOfTimeError

        with monkeypatch.context() as patch:
            patch.setattr(enumeration, "require_time", look)
            found = enumeration.enumeration(instance, dealt(instance), deadline_s=1.0)
        if found is not None:
            assert bounds.recheck(instance, found[1]) == found[1].value <= best
            values.add(found[1].value)
    assert len(values) > 1
    assert best in values


def solved_from(instance: LayoutInstance, most_steps: int) -> tuple[int, Bound]:
    found = enumeration.enumeration(instance, dealt(instance), most_steps=most_steps)
    assert found is not None
    return evaluate(instance, found[0]).j_ticks, found[1]


@pytest.mark.slow
def test_twenty_four_items_take_less_than_two_gib() -> None:
    resource = pytest.importorskip("resource")
    instance = reference_like(24, 2)
    starts = baselines(instance, np.arange(24) % instance.num_cells).values()
    start = min(starts, key=lambda layout: evaluate(instance, layout).j_ticks)
    lower = bounds.volume(instance).value
    found = enumeration.enumeration(instance, start, lower=lower, most_steps=10**10)
    assert found is not None
    assert bounds.recheck(instance, found[1]) == found[1].value
    assert found[1].value > lower
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak_kib < 2 * 2**20


# ----------------------------------------------------------------------- the evidence


def test_tampering_shows() -> None:
    instance = twelve_items()
    ticks, bound = solved(instance, dealt(instance))
    steps = bound.evidence["steps"]
    for evidence, message in (
        ({}, "fields"),
        ({"steps": steps, "more": 1}, "fields"),
        ({"steps": "many"}, "steps"),
        ({"steps": -1}, "steps"),
        ({"steps": steps + 1}, "the evidence says"),
        ({"steps": MOST_STEPS + 1}, "is not repeated"),
    ):
        changed = dataclasses.replace(bound, evidence=evidence)
        with pytest.raises(CertificateError, match=message):
            bounds.recheck(instance, changed)
    for value in (ticks + 1, ticks + 1000, 2**70):
        higher = dataclasses.replace(bound, value=value)
        with pytest.raises(CertificateError, match="the evidence says"):
            bounds.recheck(instance, higher)


def test_a_bound_above_the_optimum_is_refuted_by_the_search_itself() -> None:
    """Evidence with the right steps for a wrong value: the optimum comes back."""
    instance = twelve_items()
    ticks, bound = solved(instance, dealt(instance))
    wrong = evaluate(instance, dealt(instance)).j_ticks
    assert wrong > ticks
    steps = enumeration._Search(enumeration._Tables(instance), wrong).steps
    higher = dataclasses.replace(bound, value=wrong, evidence={"steps": steps})
    assert bounds.recheck(instance, higher) == ticks


def test_a_bound_below_the_optimum_is_still_a_bound() -> None:
    instance = twelve_items()
    ticks, bound = solved(instance, dealt(instance))
    for value in (ticks - 1, instance.offset_ticks, 0, -(2**70)):
        steps = enumeration._Search(enumeration._Tables(instance), value).steps
        lower = dataclasses.replace(bound, value=value, evidence={"steps": steps})
        assert bounds.recheck(instance, lower) == value


def test_more_items_than_allowed_are_not_repeated() -> None:
    many = random_instance(np.random.default_rng(3), MOST_ITEMS + 1, 1, [0, 0])
    claim = Bound(name="enumeration", kind="arithmetic", value=9, evidence={"steps": 0})
    with pytest.raises(CertificateError, match=f"at most {MOST_ITEMS} items"):
        bounds.recheck(many, claim)


# ---------------------------------------------------------------------- the certifier


def reference_like(num_items: int, num_rows: int, **fields: Any) -> LayoutInstance:
    """Costs of the size that real windows have: 2^44 ticks for J = 1."""
    rng = np.random.default_rng(num_items)
    tokens_I = np.minimum(16384, rng.lognormal(8.5, 0.9, num_items)).astype(np.int64)
    copies_ILP = rng.multinomial(
        4 * tokens_I[:, None], rng.dirichlet([8, 8], (num_items, 24))
    )
    attention_I = tokens_I + tokens_I**2 // 32768
    share = 2**43 // 24 * 4 // (4 * tokens_I.sum())
    return random_instance(
        rng,
        num_items,
        num_rows,
        [0, 0, 1, 1],
        weight_I=tokens_I,
        attention_ticks_IC=(attention_I * (2**43 * 4 // attention_I.sum()))[:, None],
        load_ILP=copies_ILP,
        layer_weight_ticks_L=np.full(24, share),
        unit_ticks=2**44,
        token_cap=int(tokens_I.max() + tokens_I.sum() // 4),
        **fields,
    )


@pytest.mark.parametrize("coupling", ["step", "row"])
@pytest.mark.parametrize(("items", "rows"), [(12, 1), (12, 2)])
def test_small_instances_close_with_arithmetic_alone(
    items: int, rows: int, coupling: str
) -> None:
    instance = reference_like(items, rows, coupling=coupling)
    (known,) = certify(instance, time_limit_s=60)
    assert known.closed
    assert known.best_bound.kind == "arithmetic"
    assert recheck(known, instance) == known.upper


def test_sixteen_items_close() -> None:
    instance = reference_like(16, 2)
    ticks, bound = solved(instance, dealt(instance))
    assert ticks == bound.value
