"""Demand: completed for tokens without a route, exactly; projected onto EP ranks.

Axis letters: I items, L MoE layers, E experts, P EP ranks, n samples of a chunk.
"""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt import demand
from rpopt.demand import MAX_SPREAD_COPIES, aggregate, completed, project, spread
from rpopt.errors import InstanceError
from rpopt.items import DROPPED, add_dummies, build_items
from rpopt.plans import Placement
from rpopt.rules import PackingRules
from rpopt.window import Window
from tests.cases import Case, cases, random_window


def rules(**changes: Any) -> PackingRules:
    return PackingRules(**{"token_cap": 100, "pad_multiple": 4, **changes})


def all_completed(window: Window, rules: PackingRules) -> dict[int, np.ndarray]:
    found = {}
    for sample_n, demand_nLE in completed(window, build_items(window, rules), rules):
        found.update(zip(sample_n.tolist(), demand_nLE, strict=True))
    return found


@st.composite
def histograms(draw: st.DrawFn) -> tuple[list[int], list[list[list[int]]]]:
    """Copies to spread [n] and histograms [n, L, E] without an empty layer."""
    n, layers, experts = (draw(st.integers(1, m)) for m in (3, 2, 6))
    entry = st.one_of(st.integers(0, 3), st.integers(0, 2**31 - 1))
    row = st.lists(entry, min_size=experts, max_size=experts).filter(any)
    sample = st.lists(row, min_size=layers, max_size=layers)
    copies = st.one_of(st.integers(0, 50), st.integers(0, MAX_SPREAD_COPIES - 1))
    return (
        draw(st.lists(copies, min_size=n, max_size=n)),
        draw(st.lists(sample, min_size=n, max_size=n)),
    )


@given(histograms())
def test_spread_sums_are_exact_and_shares_close(
    case: tuple[list[int], list[list[list[int]]]],
) -> None:
    copies_n, base_nLE = case
    found_nLE = spread(np.array(copies_n), np.array(base_nLE)).tolist()
    for copies, base_LE, found_LE in zip(copies_n, base_nLE, found_nLE, strict=True):
        for base_E, found_E in zip(base_LE, found_LE, strict=True):
            assert sum(found_E) == copies
            assert min(found_E) >= 0
            slack = 1 + (Fraction(copies, 2**20) if sum(base_E) >= 2**26 else 0)
            for base, got in zip(base_E, found_E, strict=True):
                assert abs(got - Fraction(copies * base, sum(base_E))) <= slack


@given(cases())
@settings(deadline=None, max_examples=60)
def test_completed_sums_are_top_k_times_padded_tokens(case: Case) -> None:
    window = case.window
    pad = case.rules.pad_multiple
    found = all_completed(window, case.rules)
    if not window.num_layers:
        assert not found
        return
    items = build_items(window, case.rules)
    assert sorted(found) == items.kept_samples.tolist()
    for sample, demand_LE in found.items():
        tokens = -(-int(window.length_N[sample]) // pad) * pad
        if case.rules.missing_routes == "ignore":
            tokens = int(window.routed_N[sample])
        assert (demand_LE.sum(axis=1) == window.top_k * tokens).all()
        assert window.demand_NLE is not None
        assert (demand_LE >= window.demand_NLE[sample]).all()


SPARSE = Window(
    length_N=[4, 3, 6, 5],
    routed_tokens_N=[4, 0, 3, 0],
    demand_NLE=[[[6, 2, 0]], [[0, 0, 0]], [[0, 3, 3]], [[0, 0, 0]]],
    top_k=2,
    prompt_group_N=[5, 5, -1, 6],
)


def test_proportional_uses_the_own_histogram_then_the_group_then_the_window() -> None:
    found = all_completed(SPARSE, rules())
    assert found[0].tolist() == [[6, 2, 0]]
    assert found[1].tolist() == [[6, 2, 0]]  # 8 copies as 6 : 2 : 0 of its group
    assert found[2].tolist() == [[0, 8, 8]]  # 3 of 8 tokens have a route
    # Nothing known of group 6, so 16 copies as 6 : 5 : 3 of the window.
    assert found[3].tolist() == [[6, 6, 4]]


def test_uniform_spreads_evenly() -> None:
    found = all_completed(SPARSE, rules(missing_routes="uniform"))
    assert found[1].tolist() == [[2, 3, 3]]
    assert found[2].tolist() == [[3, 6, 7]]
    assert found[3].tolist() == [[5, 5, 6]]


def test_ignore_adds_nothing() -> None:
    found = all_completed(SPARSE, rules(missing_routes="ignore"))
    assert SPARSE.demand_NLE is not None
    assert [found[i].tolist() for i in range(4)] == SPARSE.demand_NLE.tolist()


def test_without_any_route_demand_is_uniform() -> None:
    window = Window(length_N=[2, 4], demand_NLE=np.zeros((2, 1, 2), dtype=int), top_k=1)
    found = all_completed(window, rules())
    assert [found[i].tolist() for i in range(2)] == [[[2, 2]], [[2, 2]]]


def test_dropped_samples_want_nothing() -> None:
    capped = rules(token_cap=4, oversize="drop")
    found = all_completed(SPARSE, capped)
    assert sorted(found) == [0, 1]
    total = aggregate(SPARSE, build_items(SPARSE, capped), capped)
    assert total.tolist() == [[12, 4, 0]]


@given(cases())
@settings(deadline=None, max_examples=40)
def test_projection_is_the_naive_sum_over_experts(case: Case) -> None:
    window = case.window
    if not window.num_layers:
        return
    rng = np.random.default_rng(case.rules.token_cap)
    slot_LE = [rng.permutation(window.num_experts) for _ in range(window.num_layers)]
    placement = Placement(slot_LE=slot_LE, num_ep_ranks=case.topology.ep)
    items = build_items(window, case.rules)
    roomy = add_dummies(items, items.num_items + 2, case.rules)
    expected = np.zeros((roomy.num_items, window.num_layers, case.topology.ep), int)
    for sample, demand_LE in all_completed(window, case.rules).items():
        item = items.item_of_sample_N[sample]
        assert item != DROPPED
        for layer in range(window.num_layers):
            for expert in range(window.num_experts):
                rank = placement.rank_LE[layer, expert]
                expected[item, layer, rank] += demand_LE[layer, expert]
    found = project(window, roomy, case.rules, placement)
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)
    total_LE = aggregate(window, items, case.rules)
    assert found.sum() == total_LE.sum()


@pytest.mark.parametrize("entries", [1, 30, 10**9])
def test_chunks_do_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    window = random_window(3, num_samples=9, unrouted=2, bundle_N=[0, 1, 0] * 3)
    items = build_items(window, rules())
    placement = Placement.identity(2, 4, 2)
    expected = project(window, items, rules(), placement)
    monkeypatch.setattr(demand, "_CHUNK_ENTRIES", entries)
    assert np.array_equal(project(window, items, rules(), placement), expected)
    sizes = [n.size for n, _ in completed(window, items, rules())]
    assert sizes == {1: [1] * 9, 30: [3] * 3, 10**9: [9]}[entries]


def test_a_placement_of_other_experts_is_refused() -> None:
    items = build_items(SPARSE, rules())
    with pytest.raises(InstanceError, match=r"\(1, 4\) .* the window has \(1, 3\)"):
        project(SPARSE, items, rules(), Placement.identity(1, 4, 2))


def test_a_load_beyond_32_bits_is_refused() -> None:
    demand_NLE = np.full((2, 1, 2), 2**30, dtype=np.int32)
    window = Window(
        length_N=[2**30] * 2, demand_NLE=demand_NLE, top_k=2, bundle_N=[0, 0]
    )
    wide = PackingRules(token_cap=2**32)
    items = build_items(window, wide)
    with pytest.raises(InstanceError, match=r"sends 4294967296 .* at most 2\*\*31 - 1"):
        project(window, items, wide, Placement.identity(1, 2, 1))
    apart = build_items(Window(length_N=[2**30] * 2), wide)
    split = project(window, apart, wide, Placement.identity(1, 2, 2))
    assert (split == 2**30).all()


def test_padding_beyond_exact_arithmetic_is_refused() -> None:
    window = Window(length_N=[1], demand_NLE=[[[1, 1]]], top_k=2)
    wide = PackingRules(token_cap=2**36, pad_multiple=2**36)
    items = build_items(window, wide)
    with pytest.raises(InstanceError, match=r"sample 0 sends 137438953470 .* lower"):
        aggregate(window, items, wide)
    ignored = PackingRules(token_cap=2**36, pad_multiple=2**36, missing_routes="ignore")
    assert aggregate(window, items, ignored).tolist() == [[1, 1]]
