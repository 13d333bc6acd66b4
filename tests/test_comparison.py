"""Baselines and the user's schedule beside a plan, under one evaluator."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.comparison import Comparison, compare, schedule_layout
from rpopt.errors import (
    CertificateError,
    InfeasibleError,
    InstanceError,
    MismatchError,
)
from rpopt.layout.evaluate import evaluate
from rpopt.plans import Layout, Placement
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window
from tests.cases import HALF, Case, cases, make_plan, medium_case


def by_name(entries: list[Comparison], method: str) -> list[Comparison]:
    return [entry for entry in entries if entry.method == method]


def one(entries: list[Comparison], method: str) -> Comparison:
    (entry,) = by_name(entries, method)
    return entry


@given(cases())
@settings(deadline=None, max_examples=30)
def test_every_entry_is_a_feasible_layout_best_first(case: Case) -> None:
    plan = make_plan(case)
    found = compare(case.window, plan)
    assert [entry.j for entry in found] == sorted(entry.j for entry in found)
    assert one(found, "rpopt plan").j == plan.j
    placements = {entry.placement for entry in found}
    if case.window.num_layers:
        assert placements == {"identity", "EPLB", "rpopt"}
    for entry in found:
        assert entry.breaks is None
        assert 0 < entry.fill <= 1
        if entry.method != "next-fit":
            assert entry.num_rows == plan.layout.num_rows


def test_the_parts_of_j_add_up() -> None:
    case = medium_case()
    found = compare(case.window, make_plan(case))
    for entry in found:
        assert entry.attention + entry.experts == pytest.approx(entry.j, rel=1e-9)
    fill = float(case.problems.items.weight_tokens_I.sum()) / (
        one(found, "rpopt plan").num_rows * 4 * 128
    )
    assert one(found, "rpopt plan").fill == pytest.approx(fill)


def test_the_same_plan_gives_the_same_table() -> None:
    case = medium_case()
    plan = make_plan(case)
    assert compare(case.window, plan) == compare(case.window, plan)


def test_next_fit_is_left_out_where_its_rows_cannot_be_filled() -> None:
    """Next-fit opens three cells, so two rows of two ranks, for three samples."""
    case = Case(
        window=Window(length_N=[5, 8, 3]),
        topology=Topology(dp=2, ep=2),
        rules=PackingRules(token_cap=8),
        cost=HALF,
    )
    plan = make_plan(case)
    assert plan.layout.num_rows == 1
    assert not by_name(compare(case.window, plan), "next-fit")
    roomy = replace(case, rules=PackingRules(token_cap=8, dummies=True))
    assert one(compare(case.window, make_plan(roomy)), "next-fit").num_rows == 2


SIX = Case(
    window=Window(
        length_N=[4, 3, 3, 2, 2, 2],
        demand_NLE=[[[4, 0]], [[0, 3]], [[3, 0]], [[1, 1]], [[0, 2]], [[2, 0]]],
        top_k=1,
    ),
    topology=Topology(dp=2, ep=2),
    rules=PackingRules(token_cap=5),
    cost=HALF,
)


def schedule_entry(schedule: Any, case: Case = SIX) -> Comparison:
    return one(compare(case.window, make_plan(case), schedule), "your schedule")


def test_a_schedule_is_evaluated_with_identity_placement() -> None:
    schedule = [[[0], [1, 3]], [[2, 4], [5]]]
    entry = schedule_entry(schedule)
    instance = SIX.problems.layout(Placement.identity(1, 2, 2), 2)
    layout = Layout(row_I=[0, 1, 0, 1, 0, 1], rank_I=[0, 0, 1, 0, 1, 1], num_rows=2)
    assert entry.j == evaluate(instance, layout).j
    assert (entry.placement, entry.num_rows, entry.breaks) == ("identity", 2, None)


def test_the_plan_as_a_schedule_costs_the_same() -> None:
    case = replace(SIX, window=Window(length_N=SIX.window.length_N))
    plan = make_plan(case)
    schedule = [plan.micro_batches(case.window, rank=d) for d in range(2)]
    entry = schedule_entry(schedule, case)
    assert (entry.j, entry.placement) == (plan.j, "no experts")


@pytest.mark.parametrize(
    ("schedule", "breaks"),
    [
        ([[[0, 1], [3]], [[2, 4], [5]]], "token cap"),
        ([[[0], [1, 3], []], [[2, 4], [5], []]], "empty cell"),
        (
            [[[0], [1], [2], [3]], [[4], [5], [], []]],
            "empty cell",
        ),
        ([[[0, 1, 2, 3, 4, 5]], [[]]], "empty cell, token cap"),
    ],
)
def test_constraints_that_a_schedule_breaks_are_named(
    schedule: Any, breaks: str
) -> None:
    assert schedule_entry(schedule).breaks == breaks


def test_empty_cells_are_dummies_where_those_are_allowed() -> None:
    case = replace(SIX, rules=PackingRules(token_cap=5, dummies=True))
    schedule = [[[0], [1], [2], [3]], [[4], [5], [], []]]
    assert schedule_entry(schedule, case).breaks is None


def test_a_wrong_multiple_of_rows_is_named() -> None:
    case = replace(SIX, rules=PackingRules(token_cap=8, row_multiple=2, dummies=True))
    schedule = [[[0], [1], [3]], [[2], [4], [5]]]
    assert schedule_entry(schedule, case).breaks == "row multiple"


def test_too_many_samples_in_a_cell_are_named() -> None:
    case = replace(SIX, rules=PackingRules(token_cap=16, max_samples_per_cell=3))
    assert schedule_entry([[[0]], [[1, 2, 3, 4, 5]]], case).breaks == "samples per cell"


def test_dropped_samples_may_be_scheduled_or_not() -> None:
    rules = PackingRules(token_cap=3, oversize="drop", dummies=True)
    case = replace(SIX, rules=rules)
    with_it = schedule_entry([[[0, 1], [3], [4]], [[2], [5], []]], case)
    without = schedule_entry([[[1], [3], [4]], [[2], [5], []]], case)
    assert with_it == without


def test_bundles_stay_together() -> None:
    window = replace(SIX.window, bundle_N=[-1, -1, -1, 7, 7, -1])
    case = replace(SIX, window=window)
    layout = schedule_layout(case.problems, [[[0], [1]], [[2], [3, 4, 5]]])
    assert layout.row_I.tolist() == [0, 1, 0, 1, 1]
    with pytest.raises(InstanceError, match="sample 4 or its bundle in two cells"):
        schedule_layout(case.problems, [[[0], [1, 3]], [[2], [4, 5]]])


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([], "rows on 0 ranks; 2 ranks with equally many rows"),
        ([[[0, 1, 2, 3, 4, 5]]], "1 ranks; 2 ranks"),
        ([[[0, 1, 2], [3]], [[4, 5]]], r"\[2, 1\] rows on 2 ranks"),
        ([[], []], "6 samples are not scheduled exactly once, first sample 0"),
        ([[[0, 1]], [[2, 3, 4]]], r"1 samples .* first sample 5 \(0 times\)"),
        ([[[0, 1, 5]], [[2, 3, 4, 5]]], "sample 5 or its bundle in two cells"),
        ([[[0, 1, 5, 5]], [[2, 3, 4]]], r"first sample 5 \(2 times\)"),
        (
            [[[0, 1, 6]], [[2, 3, 4, 5]]],
            "names sample 6; the window has samples 0 to 5",
        ),
        ([[[0, 1, -1]], [[2, 3, 4, 5]]], "names sample -1"),
    ],
)
def test_schedules_without_a_value_are_refused(schedule: Any, words: str) -> None:
    with pytest.raises(InstanceError, match=words):
        schedule_entry(schedule)


def test_another_window_is_refused() -> None:
    with pytest.raises(MismatchError, match="give the window that was planned"):
        compare(medium_case(1).window, make_plan(medium_case()))


def test_a_plan_that_does_not_hold_is_refused() -> None:
    plan = make_plan(SIX)
    crowded = Layout(row_I=[0] * 6, rank_I=[0] * 6, num_rows=plan.layout.num_rows)
    with pytest.raises(InfeasibleError, match="the plan's layout breaks"):
        compare(SIX.window, replace(plan, layout=crowded))
    far = replace(plan.layout, rank_I=plan.layout.rank_I + 9)
    with pytest.raises(InfeasibleError, match="rank range"):
        compare(SIX.window, replace(plan, layout=far))
    witness = {"cell_I": np.zeros(6, dtype=int).tolist()}
    rows = replace(plan.rows, witness=witness)
    with pytest.raises(CertificateError, match="the witness does not hold"):
        compare(SIX.window, replace(plan, rows=rows))
