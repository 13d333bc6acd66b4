"""From a window to its three problems: J of the design, for windows of every kind.

Axis letters: N samples, L MoE layers, E experts.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.cost import CostModel
from rpopt.demand import completed
from rpopt.errors import InfeasibleError, InstanceError
from rpopt.layout.evaluate import evaluate
from rpopt.plans import Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window
from tests.cases import HALF, Case, cases, make_plan, medium_case
from tests.layout.cases import worked_example
from tests.oracle.layout import exact_j


def share(case: Case, lengths: list[int], demand_NLE: list[Any]) -> Fraction:
    """The attention share: given, or from the seconds of a balanced step."""
    cost, topology = case.cost, case.topology
    if not case.window.num_layers:
        return Fraction(1)
    if cost.omega is not None:
        return cost.omega
    attention = sum(c.c1 * n + c.c2 * n**2 for c in cost.attention for n in lengths)
    attention = attention / (topology.dp * topology.tp * topology.cp)
    copies = sum(sum(map(sum, demand_LE)) for demand_LE in demand_NLE)
    peers = topology.num_shards * topology.ep * topology.num_slices * topology.etp
    expert = cost.expert_per_copy * copies / peers
    return attention / (attention + expert) if attention + expert else Fraction(1)


def exact(case: Case, plan: Plan) -> Fraction:
    """J from the design's formula, over samples: no items, dummies or ticks."""
    window = case.window
    row_N, rank_N = plan.cell_of_sample(window)
    kept = [i for i in range(window.num_samples) if row_N[i] >= 0]
    wanted: dict[int, Any] = {}
    for sample_n, demand_nLE in completed(window, case.problems.items, case.rules):
        wanted.update(zip(sample_n.tolist(), demand_nLE.tolist(), strict=True))
    lengths = [int(window.length_N[i]) for i in kept]
    demand_NLE = [wanted.get(i, []) for i in kept]
    return exact_j(
        lengths,
        demand_NLE,
        [(int(row_N[i]), int(rank_N[i])) for i in kept],
        topology=case.topology,
        cost=case.cost
        if window.num_layers
        else replace(case.cost, layer_weight_L=None),
        omega=share(case, lengths, demand_NLE),
        slot_LE=plan.placement.slot_LE.tolist() if plan.placement else [],
        num_rows=plan.layout.num_rows,
    )


@given(cases())
@settings(deadline=None, max_examples=60)
def test_j_is_the_formula_of_the_design(case: Case) -> None:
    plan = make_plan(case)
    exactly = exact(case, plan)
    assert exactly >= 1
    instance = case.problems.layout(plan.placement, plan.layout.num_rows)
    halves = instance.attention_ticks_IC.size + int(instance.load_ILP.sum()) + 1
    error = abs(Fraction(plan.j_ticks, plan.unit_ticks) - exactly)
    assert error <= Fraction(halves, 2 * plan.unit_ticks)


@pytest.mark.parametrize(
    ("slots", "j"), [((0, 1, 2, 3), Fraction(5, 3)), ((0, 2, 1, 3), Fraction(4, 3))]
)
def test_the_worked_example(slots: tuple[int, ...], j: Fraction) -> None:
    example = worked_example(slots)
    case = Case(
        window=example.window,
        topology=example.topology,
        rules=example.rules,
        cost=example.cost,
    )
    plan = replace(make_plan(case), placement=example.placement, layout=example.layout)
    assert exact(case, plan) == j
    instance = case.problems.layout(example.placement, 1)
    assert evaluate(instance, example.layout).j == pytest.approx(float(j), rel=1e-12)


def test_row_coupling_never_costs_less() -> None:
    case = medium_case()
    plan = make_plan(case)
    row = replace(case, topology=Topology(dp=4, ep=2, coupling="row"))
    instance = row.problems.layout(plan.placement, plan.layout.num_rows)
    assert evaluate(instance, plan.layout).j_ticks >= plan.j_ticks


def test_slices_balance_single_ranks() -> None:
    """k > 1: every DP rank is a shard of its own, and tp, cp cancel in J."""
    case = medium_case()
    sliced = replace(case, topology=Topology(dp=4, ep=2, tp=2, cp=2))
    single = replace(case, topology=Topology(dp=4, ep=1))
    assert sliced.topology.num_shards == single.topology.num_shards == 4
    plan = make_plan(sliced)
    assert exact(sliced, plan) >= 1
    assert plan.topology.notes()


def test_a_shard_map_only_renames_ranks() -> None:
    case = medium_case()
    mapped = replace(case, topology=Topology(dp=4, ep=2, shard_of_rank_D=[1, 0, 0, 1]))
    plan, other = make_plan(case), make_plan(mapped)
    assert plan.j_ticks == other.j_ticks
    shard_I = mapped.topology.rank_shards_D[other.layout.rank_I]
    assert np.bincount(shard_I).size == 2


def test_dummies_cost_nothing() -> None:
    window = Window(length_N=[4, 4])
    rules = PackingRules(token_cap=8, dummies=True)
    case = Case(window=window, topology=Topology(dp=4, ep=2), rules=rules, cost=HALF)
    plan = make_plan(case)
    assert plan.layout.row_I.size == 4
    assert plan.j == 2.0  # the best of one shard with both samples, or both shards
    assert exact(case, plan) == 2


def test_too_few_samples_name_the_remedy() -> None:
    case = Case(
        window=Window(length_N=[4, 4]),
        topology=Topology(dp=4, ep=2),
        rules=PackingRules(token_cap=8),
        cost=HALF,
    )
    with pytest.raises(InfeasibleError, match=r"2 samples .* 4 cells .*dummies = True"):
        case.problems.layout(None, 1)


def test_experts_must_divide() -> None:
    case = medium_case()
    with pytest.raises(InstanceError, match="8 experts .* ep = 3; choose"):
        _ = replace(case, topology=Topology(dp=3, ep=3)).problems


def test_a_placement_must_fit() -> None:
    problems = medium_case().problems
    for placement, words in (
        (None, "a placement is needed"),
        (Placement.identity(3, 8, 4), "4 EP ranks; the topology has ep = 2"),
        (Placement.identity(2, 8, 2), r"\(2, 8\)"),
    ):
        with pytest.raises(InstanceError, match=words):
            problems.layout(placement, 2)
    lengths_only = medium_case(routes=False).problems
    with pytest.raises(InstanceError, match="has 0 MoE layers"):
        lengths_only.layout(Placement.identity(3, 8, 2), 2)


def test_the_same_input_gives_the_same_instances() -> None:
    first, second = medium_case().problems, medium_case().problems
    placement = Placement.identity(3, 8, 2)
    assert first.packing == second.packing
    assert first.placement == second.placement
    assert first.layout(placement, 5) == second.layout(placement, 5)


def test_lengths_only_have_no_placement() -> None:
    case = medium_case(routes=False)
    problems = WindowProblems(case.window, case.topology, case.rules, case.cost)
    assert problems.placement is None
    assert problems.layout(None, 5).load_ILP.shape == (40, 0, 2)


@pytest.mark.parametrize("rule", ["proportional", "uniform", "ignore"])
def test_the_rule_for_missing_routes_changes_the_experts_only(rule: str) -> None:
    problems = medium_case(missing_routes=rule).problems
    assert problems.packing == medium_case().problems.packing
    assert problems.placement is not None
    copies_L = problems.placement.load_LE.sum(axis=1)
    window = problems.window
    tokens = int(problems.items.padded_tokens_I.sum())
    if rule == "ignore":
        tokens = int(window.routed_N.sum())
    assert (copies_L == window.top_k * tokens).all()


def test_omega_decides_what_is_balanced() -> None:
    case = medium_case()
    for omega in (0, 1):
        plan = make_plan(replace(case, cost=CostModel(omega=omega)))
        instance = replace(case, cost=CostModel(omega=omega)).problems.layout(
            plan.placement, plan.layout.num_rows
        )
        cost = evaluate(instance, plan.layout)
        assert bool(cost.attention_ticks_RSC.any()) == (omega == 1)
        assert bool(cost.expert_ticks_RSL.any()) == (omega == 0)
