"""The numbers behind J against a naive recomputation."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.demand import completed
from rpopt.errors import InfeasibleError, InstanceError, MismatchError
from rpopt.items import build_items
from rpopt.plans import Placement, Plan
from rpopt.reporting import report
from rpopt.topology import Topology
from tests.cases import Case, cases, make_plan, medium_case


def naive_loads(case: Case, plan: Plan) -> dict[tuple[int, int, int, int], int]:
    """Token copies by (layer, row, shard, EP rank), sample by sample."""
    assert plan.placement is not None
    row_N, rank_N = plan.cell_of_sample(case.window)
    shard_D = case.topology.rank_shards_D
    load: dict[tuple[int, int, int, int], int] = defaultdict(int)
    items = build_items(case.window, case.rules)
    for sample_n, demand_nLE in completed(case.window, items, case.rules):
        for i, demand_LE in zip(sample_n.tolist(), demand_nLE.tolist(), strict=True):
            row, shard = int(row_N[i]), int(shard_D[rank_N[i]])
            for layer, demand_E in enumerate(demand_LE):
                for expert, copies in enumerate(demand_E):
                    rank = int(plan.placement.rank_LE[layer, expert])
                    load[layer, row, shard, rank] += copies
    return load


@given(cases())
@settings(deadline=None, max_examples=40)
def test_loads_are_the_naive_ones(case: Case) -> None:
    plan = make_plan(case)
    found = report(case.window, plan)
    assert found.cost.j_ticks == plan.j_ticks
    if plan.placement is None:
        assert found.largest_load is None
        assert found.placement_cost is None
        assert found.load_percentiles_L3.shape == (0, 3)
        assert found.silent_experts_L.size == 0
        return
    load = naive_loads(case, plan)
    largest = found.largest_load
    assert largest is not None
    assert case.window.layer_ids_L is not None
    layer = case.window.layer_ids_L.tolist().index(largest.layer_id)
    assert largest.copies == max(load.values(), default=0)
    assert load[layer, largest.row, largest.shard, largest.ep_rank] == largest.copies
    assert found.placement_cost is not None
    groups = plan.layout.num_rows * case.topology.num_shards
    for layer in range(case.window.num_layers):
        by_rank = [0] * case.topology.ep
        for (l2, _, _, rank), copies in load.items():
            by_rank[rank] += copies if l2 == layer else 0
        assert found.placement_cost.load_LP[layer].tolist() == by_rank
        assert found.placement_cost.peak_L[layer] == max(by_rank)
        mean = sum(by_rank) / (groups * case.topology.ep)
        top = max((c for key, c in load.items() if key[0] == layer), default=0)
        expected = top / mean if mean else 1
        assert found.load_percentiles_L3[layer, 2] == pytest.approx(expected)


@given(cases())
@settings(deadline=None, max_examples=40)
def test_fill_and_padding_are_the_naive_ones(case: Case) -> None:
    plan = make_plan(case)
    found = report(case.window, plan)
    pad, length_N = case.rules.pad_multiple, case.window.length_N.tolist()
    padded = sum(-(-n // pad) * pad for n in length_N)
    cells = plan.layout.num_rows * case.topology.dp
    assert found.fill == pytest.approx(padded / (cells * case.rules.token_cap))
    assert found.padding == pytest.approx(1 - sum(length_N) / padded)
    assert found.num_dropped == 0
    num_items = case.problems.items.num_items
    assert found.num_dummies == max(0, cells - num_items)


def test_percentiles_are_over_all_groups_and_ranks() -> None:
    case = medium_case()
    plan = make_plan(case)
    found = report(case.window, plan)
    load = naive_loads(case, plan)
    for layer in range(3):
        loads = [c for key, c in load.items() if key[0] == layer]
        loads += [0] * (plan.layout.num_rows * 2 * 2 - len(loads))
        expected = np.percentile(loads, (50, 95, 100)) / np.mean(loads)
        np.testing.assert_allclose(found.load_percentiles_L3[layer], expected)


def test_dropped_samples_are_counted_and_not_dispatched() -> None:
    case = medium_case(token_cap=40, oversize="drop", pad_multiple=1)
    found = report(case.window, make_plan(case))
    dropped = int((case.window.length_N > 40).sum())
    assert found.num_dropped == dropped > 0
    missing = 40 - dropped  # one token of each kept sample has no route
    assert f"{missing} tokens without a route" in " ".join(found.notes)


def test_silent_experts_are_those_without_a_copy() -> None:
    case = medium_case()
    window = case.window
    assert window.demand_NLE is not None
    demand = window.demand_NLE.astype(int)
    demand[:, 1, 0] += demand[:, 1, 3] + demand[:, 1, 4]
    demand[:, 1, 3:5] = 0
    case = replace(case, window=replace(window, demand_NLE=demand))
    silent_L = report(case.window, make_plan(case)).silent_experts_L
    assert silent_L.tolist() == [0, 2, 0]


def test_moves_are_counted_against_the_placement_in_force() -> None:
    case = medium_case()
    plan = make_plan(case)
    assert plan.placement is not None
    assert report(case.window, plan).moved_experts_L is None
    same = report(case.window, plan, plan.placement).moved_experts_L
    assert same is not None
    assert same.tolist() == [0, 0, 0]
    identity = Placement.identity(3, 8, 2)
    moved = report(case.window, plan, identity).moved_experts_L
    assert moved is not None
    assert moved.tolist() == plan.placement.num_moved(identity).tolist()
    with pytest.raises(InstanceError, match="cannot be compared"):
        report(case.window, plan, Placement.identity(2, 8, 2))


def test_notes_say_what_a_reader_must_know() -> None:
    case = medium_case()
    (note,) = report(case.window, make_plan(case)).notes
    assert "by the rule 'proportional'" in note
    sliced = replace(case, topology=Topology(dp=4, ep=2, tp=2, cp=2))
    notes = report(case.window, make_plan(sliced)).notes
    assert any("lower estimate" in note for note in notes)
    lengths = medium_case(routes=False)
    assert report(lengths.window, make_plan(lengths)).notes == (
        "lengths only: no routes, attention alone is balanced",
    )


def test_another_window_and_broken_plans_are_refused() -> None:
    case = medium_case()
    plan = make_plan(case)
    with pytest.raises(MismatchError, match="give the window that was planned"):
        report(medium_case(1).window, plan)
    far = replace(plan.layout, row_I=plan.layout.row_I + 99)
    with pytest.raises(InfeasibleError, match="row range"):
        report(case.window, replace(plan, layout=far))
    other = replace(plan, placement=Placement.identity(3, 8, 4))
    with pytest.raises(InstanceError, match="4 EP ranks"):
        report(case.window, other)
