"""Placements, layouts and plans as records, and what a trainer reads from them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import InstanceError, MismatchError
from rpopt.items import DROPPED, build_items
from rpopt.plans import Layout, Placement, Plan
from rpopt.rules import PackingRules
from rpopt.window import Window
from tests.cases import Case, cases, make_plan, medium_case


@st.composite
def rank_maps(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """A balanced EP rank for each expert of each layer."""
    ranks, per_rank, layers = (draw(st.integers(1, n)) for n in (4, 3, 3))
    rank_E = np.repeat(np.arange(ranks), per_rank).tolist()
    return np.array([draw(st.permutations(rank_E)) for _ in range(layers)]), ranks


@given(rank_maps(), rank_maps())
def test_experts_that_stay_keep_their_slot(
    wanted: tuple[np.ndarray, int], other: tuple[np.ndarray, int]
) -> None:
    rank_LE, ranks = wanted
    fits = other[0].shape == rank_LE.shape and other[1] == ranks
    current = Placement.from_ranks(*other) if fits else None
    found = Placement.from_ranks(rank_LE, ranks, current)
    assert np.array_equal(found.rank_LE, rank_LE)
    before = current or Placement.identity(*rank_LE.shape, ranks)
    stay = before.rank_LE == rank_LE
    assert np.array_equal(found.slot_LE[stay], before.slot_LE[stay])
    assert np.array_equal(found.num_moved(before), (~stay).sum(axis=1))


def test_expert_of_slot_is_the_inverse() -> None:
    placement = Placement(slot_LE=[[2, 0, 3, 1], [0, 1, 2, 3]], num_ep_ranks=2)
    assert placement.rank_LE.tolist() == [[1, 0, 1, 0], [0, 0, 1, 1]]
    inverse = placement.expert_of_slot_LE
    assert inverse.tolist() == [[1, 3, 0, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slot_LE": [[0, 0, 2, 3]]}, ("layer 0", "no permutation of 0 to 3")),
        ({"slot_LE": [[0, 1, 2, 4]]}, ("no permutation of 0 to 3",)),
        ({"slot_LE": [[0, 1, 2, 3], [0, 1, 2, -1]]}, ("layer 1",)),
        ({"num_ep_ranks": 3}, ("4 experts", "3 EP ranks")),
        ({"num_ep_ranks": 0}, ("num_ep_ranks = 0",)),
        ({"slot_LE": [[]]}, ("0 experts",)),
        ({"slot_LE": [0, 1, 2, 3]}, ("1 axes",)),
    ],
)
def test_bad_placements_are_refused(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InstanceError) as caught:
        Placement(**{"slot_LE": [[0, 1, 2, 3]], "num_ep_ranks": 2, **changes})
    assert all(word in str(caught.value) for word in words)


def test_ranks_must_be_equally_full() -> None:
    with pytest.raises(InstanceError, match="layer 0 does not put 2 experts"):
        Placement.from_ranks(np.array([[0, 0, 0, 1]]), 2)


def test_only_like_placements_are_compared() -> None:
    placement = Placement.identity(1, 4, 2)
    for other in (Placement.identity(2, 4, 2), Placement.identity(1, 4, 4)):
        with pytest.raises(InstanceError, match="cannot be compared"):
            placement.num_moved(other)


def test_bad_layouts_are_refused() -> None:
    with pytest.raises(InstanceError, match="row_I has 2 entries, rank_I 1"):
        Layout(row_I=[0, 1], rank_I=[0], num_rows=2)
    with pytest.raises(InstanceError, match="num_rows = 0"):
        Layout(row_I=[0], rank_I=[0], num_rows=0)


def test_a_plan_has_a_positive_j() -> None:
    plan = make_plan(medium_case())
    assert plan.j == plan.j_ticks / plan.unit_ticks
    assert plan.lower_ticks == max(b.value for b in plan.layout_bounds)
    assert replace(plan, layout_bounds=()).lower_ticks == 0
    for name in ("j_ticks", "unit_ticks"):
        with pytest.raises(InstanceError, match=f"{name} = 0"):
            replace(plan, **{name: 0})


@given(cases())
@settings(deadline=None, max_examples=40)
def test_micro_batches_hold_every_kept_sample_once(case: Case) -> None:
    plan = make_plan(case)
    batches = [plan.micro_batches(case.window, rank=d) for d in range(case.topology.dp)]
    assert {len(rows) for rows in batches} == {plan.layout.num_rows}
    flat = [i for rows in batches for cell in rows for i in cell]
    items = build_items(case.window, case.rules)
    assert sorted(flat) == items.kept_samples.tolist()
    row_N, rank_N = plan.cell_of_sample(case.window)
    for i in flat:
        assert i in batches[rank_N[i]][row_N[i]]
        item = items.item_of_sample_N[i]
        assert row_N[i] == plan.layout.row_I[item]


def test_dropped_samples_have_no_cell() -> None:
    case = medium_case(token_cap=40, oversize="drop")
    plan = make_plan(case)
    row_N, rank_N = plan.cell_of_sample(case.window)
    dropped = build_items(case.window, case.rules).item_of_sample_N == DROPPED
    assert dropped.any()
    assert np.array_equal(row_N == -1, dropped)
    assert np.array_equal(rank_N == -1, dropped)


def test_dummies_leave_a_cell_empty() -> None:
    rules = PackingRules(token_cap=8, dummies=True, row_multiple=3)
    case = replace(medium_case(), window=Window(length_N=[3, 2, 4, 2]), rules=rules)
    plan: Plan = make_plan(case)
    batches = [plan.micro_batches(case.window, rank=d) for d in range(4)]
    assert sum(cell == [] for rows in batches for cell in rows) == 8


@pytest.mark.parametrize("rank", [-1, 4])
def test_other_ranks_are_refused(rank: int) -> None:
    case = medium_case()
    with pytest.raises(InstanceError, match=f"no DP rank {rank}; .* 0 to 3"):
        make_plan(case).micro_batches(case.window, rank=rank)


def test_another_window_is_refused() -> None:
    case = medium_case()
    plan = make_plan(case)
    other = medium_case(1).window
    with pytest.raises(MismatchError) as caught:
        plan.micro_batches(other, rank=0)
    for digest in (case.window.digest, other.digest):
        assert digest[:12] in str(caught.value)
    assert "give the window that was planned" in str(caught.value)
