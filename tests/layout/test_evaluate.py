"""J is the formula of the design: exact on the rounded data, close to the fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.cost import AttentionClass, CostModel
from rpopt.layout.evaluate import evaluate
from rpopt.plans import Layout, Placement
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window
from tests.layout.cases import Case, cases, instance, worked_example
from tests.oracle.layout import exact_j, slow_ticks


def rounding(case: Case) -> Fraction:
    """The most that rounding can move J: half a tick per cost, and per token copy."""
    problem = case.instance
    halves = problem.attention_ticks_IC.size + int(problem.load_ILP.sum()) + 1
    return Fraction(halves, 2 * problem.unit_ticks)


def j_of(case: Case) -> Fraction:
    cost = evaluate(case.instance, case.layout)
    return Fraction(cost.j_ticks, cost.unit_ticks)


def exact(case: Case) -> Fraction:
    assert case.placement is not None
    assert case.window.demand_NLE is not None
    assert case.cost.omega is not None
    row_I, rank_I = case.layout.row_I.tolist(), case.layout.rank_I.tolist()
    return exact_j(
        case.window.length_N.tolist(),
        case.window.demand_NLE.tolist(),
        list(zip(row_I, rank_I, strict=True)),
        topology=case.topology,
        cost=case.cost,
        omega=case.cost.omega,
        slot_LE=case.placement.slot_LE.tolist(),
        num_rows=case.layout.num_rows,
    )


@pytest.mark.parametrize(
    ("slots", "j"), [((0, 1, 2, 3), Fraction(5, 3)), ((0, 2, 1, 3), Fraction(4, 3))]
)
def test_the_worked_example(slots: tuple[int, ...], j: Fraction) -> None:
    case = worked_example(slots)
    assert exact(case) == j
    assert abs(j_of(case) - j) <= rounding(case) < Fraction(1, 2**39)


def test_the_worked_example_in_parts() -> None:
    case = worked_example()
    cost = evaluate(case.instance, case.layout)
    shares = cost.attention_ticks_RSC[0, :, 0] / cost.unit_ticks
    np.testing.assert_allclose(shares, [2 / 3, 1 / 2], rtol=1e-12)
    assert cost.peak_load_RSL.tolist() == [[[6], [6]]]
    np.testing.assert_allclose(
        cost.shard_ticks_S / cost.unit_ticks, [5 / 3, 3 / 2], rtol=1e-12
    )
    assert cost.critical_shard_R.tolist() == [0]
    np.testing.assert_allclose(cost.j, 5 / 3, rtol=1e-12)
    np.testing.assert_allclose(cost.balance_efficiency, 3 / 5, rtol=1e-12)


@given(cases())
@settings(deadline=None, max_examples=60)
def test_j_is_the_formula_up_to_rounding(case: Case) -> None:
    assert abs(j_of(case) - exact(case)) <= rounding(case)


@given(cases())
@settings(deadline=None, max_examples=60)
def test_j_is_at_least_one_before_rounding(case: Case) -> None:
    assert exact(case) >= 1


@given(cases())
@settings(deadline=None)
def test_the_rounded_data_are_evaluated_exactly(case: Case) -> None:
    problem = case.instance
    assert evaluate(problem, case.layout).j_ticks == slow_ticks(problem, case.layout)


@given(cases())
@settings(deadline=None, max_examples=30)
def test_the_breakdown_adds_up(case: Case) -> None:
    cost = evaluate(case.instance, case.layout)
    critical = cost.critical(cost.group_ticks_RS)
    assert cost.j_ticks == critical.sum() + cost.offset_ticks
    slowest = cost.row_ticks_R.sum()
    if case.topology.coupling == "step":
        slowest = cost.shard_ticks_S.max()
        assert len(set(cost.critical_shard_R.tolist())) == 1
    assert cost.j_ticks == slowest + cost.offset_ticks


def test_perfect_balance_is_one() -> None:
    case = Case(
        window=Window(length_N=[5] * 4, demand_NLE=[[[5, 5]]] * 4, top_k=2),
        topology=Topology(dp=2, ep=2),
        rules=PackingRules(token_cap=5),
        cost=CostModel(omega=Fraction(1, 2)),
        placement=Placement.identity(1, 2, 2),
        layout=Layout(row_I=[0, 0, 1, 1], rank_I=[0, 1, 0, 1], num_rows=2),
    )
    assert exact(case) == 1
    assert abs(j_of(case) - 1) <= rounding(case)


def test_row_coupling_waits_for_the_slowest_shard_of_each_row() -> None:
    layout = Layout(row_I=[0, 0, 1, 1], rank_I=[0, 1, 1, 0], num_rows=2)
    fields = {
        "weight_I": [1] * 4,
        "num_samples_I": [1] * 4,
        "attention_ticks_IC": [[9], [1], [8], [2]],
        "load_ILP": np.zeros((4, 0, 1), dtype=np.int32),
        "layer_weight_ticks_L": [],
        "shard_of_rank_D": [0, 1],
    }
    step = evaluate(instance(**fields), layout)
    assert (step.j_ticks, step.critical_shard_R.tolist()) == (11, [0, 0])
    row = evaluate(instance(**fields, coupling="row"), layout)
    assert (row.j_ticks, row.critical_shard_R.tolist()) == (17, [0, 1])


def test_one_maximum_per_attention_class() -> None:
    lengths = {"length_N": [6, 2, 2], "demand_NLE": None}
    classes = (AttentionClass(c1=0, c2=1), AttentionClass(name="linear"))
    case = Case(
        window=Window(**lengths),
        topology=Topology(dp=2, ep=2),
        rules=PackingRules(token_cap=9),
        cost=CostModel(attention=classes, omega=1),
        placement=None,
        layout=Layout(row_I=[0] * 3, rank_I=[0, 1, 1], num_rows=1),
    )
    # 36 + 6 on rank 0, 8 + 4 on rank 1; balanced: (44 + 10) / 2.
    np.testing.assert_allclose(float(j_of(case)), 42 / 27, rtol=1e-12)


def test_the_wall_clock_of_a_calibrated_model() -> None:
    """J times the balanced seconds is the sum of seconds, with tp, cp, k and etp."""
    topology = Topology(dp=2, ep=2, tp=2, cp=4, etp=2)
    cost = CostModel(attention=(AttentionClass(c1=3),), expert_per_copy=5, unit="s")
    case = Case(
        window=Window(
            length_N=[4, 2, 2],
            demand_NLE=[[[4, 0], [2, 2]], [[1, 1], [0, 2]], [[0, 2], [2, 0]]],
            top_k=1,
        ),
        topology=topology,
        rules=PackingRules(token_cap=9),
        cost=cost,
        placement=Placement.identity(2, 2, 2),
        layout=Layout(row_I=[0] * 3, rank_I=[0, 1, 1], num_rows=1),
    )
    assert topology.num_slices == 2
    attention_s = Fraction(3, 2 * 4)
    expert_s = Fraction(5, 2 * 2)
    slowest_s = max(
        attention_s * 4 + expert_s * (4 + 2), attention_s * 4 + expert_s * (3 + 2)
    )
    balanced_s = attention_s * Fraction(8, 2) + expert_s * Fraction(8 + 8, 2 * 2)
    j = slowest_s / balanced_s
    assert abs(j_of(case) - j) <= rounding(case)


def test_lengths_only_balance_attention_alone() -> None:
    case = Case(
        window=Window(length_N=[6, 3, 3]),
        topology=Topology(dp=2, ep=2),
        rules=PackingRules(token_cap=6),
        cost=CostModel(omega=Fraction(1, 4)),
        placement=None,
        layout=Layout(row_I=[0] * 3, rank_I=[0, 1, 1], num_rows=1),
    )
    assert j_of(case) == 1
    assert evaluate(case.instance, case.layout).expert_ticks_RSL.shape == (1, 1, 0)


def test_an_empty_cell_costs_nothing() -> None:
    problem = instance()
    layout = Layout(row_I=[0] * 6, rank_I=[0] * 6, num_rows=2)
    assert evaluate(problem, layout).j_ticks == slow_ticks(problem, layout) == 83
