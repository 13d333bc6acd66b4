"""Costs: exact input, one rounding, shares that follow or are given."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.cost import (
    MAX_UNIT_TICKS,
    AttentionClass,
    CostModel,
    ScaledCosts,
    item_costs,
    scale_costs,
)
from rpopt.errors import InstanceError
from rpopt.items import add_dummies, build_items
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window
from tests.cases import Case, cases

RULES = PackingRules(token_cap=100)
TOPOLOGY = Topology(dp=4, ep=2)


def scaled(
    cost: CostModel,
    window: Window,
    copies_L: Any,
    *,
    topology: Topology = TOPOLOGY,
    rules: PackingRules = RULES,
) -> ScaledCosts:
    items = build_items(window, rules)
    return scale_costs(
        cost, window, items, topology, np.array(copies_L, dtype=np.int64)
    )


def attention_share(found: ScaledCosts) -> float:
    """Attention share of a balanced step."""
    return float(found.attention_ticks_IC.sum()) / TOPOLOGY.dp / found.unit_ticks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"omega": 1.5}, ("omega = 1.5 lies outside [0, 1]",)),
        ({"omega": Fraction(-1, 2)}, ("omega = -1/2", "negative")),
        ({"omega": float("nan")}, ("omega = nan", "not a finite number")),
        ({"omega": "a half"}, ("omega = 'a half'", "not a finite number")),
        ({"omega": None}, ("neither omega nor expert_per_copy", "give one")),
        ({"expert_per_copy": float("inf")}, ("expert_per_copy = inf",)),
        ({"expert_per_copy": -1}, ("expert_per_copy = -1", ">= 0")),
        ({"layer_weight_L": (1, float("nan"))}, ("layer_weight_L[1] = nan",)),
        ({"layer_weight_L": (1, -2)}, ("layer_weight_L[1] = -2",)),
        ({"layer_weight_L": (0, 0)}, ("sums to 0",)),
        ({"attention": ()}, ("at least one attention class",)),
        ({"unit": "parsec"}, ("'parsec'", "'flop'")),
    ],
)
def test_bad_costs_are_refused(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InstanceError) as caught:
        CostModel(**{"omega": Fraction(1, 2), **changes})
    message = str(caught.value)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", ["c1", "c2"])
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, "1/0", None, [1], "1,5"]
)
def test_bad_coefficients_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InstanceError, match=f"{name} = "):
        AttentionClass(**{name: value})


def test_numbers_are_exact_however_they_are_given() -> None:
    exact = AttentionClass(c1=3, c2=Fraction(1, 4))
    assert exact == AttentionClass(c1="3", c2=0.25)
    assert exact == AttentionClass(c1=np.int64(3), c2=np.float32(0.25))


def test_numpy_integers_do_not_overflow_inside_fractions() -> None:
    huge = AttentionClass(c1=np.int64(0), c2=np.int64(2**40))
    window = Window(length_N=[2**20])
    (cost,) = item_costs(
        huge, window, build_items(window, PackingRules(token_cap=2**20))
    )
    assert cost == 2**80


def test_item_costs_are_exact_sums_over_a_bundle() -> None:
    window = Window(length_N=[3, 4, 9], bundle_N=[0, 0, -1])
    items = add_dummies(
        build_items(window, RULES), 4, PackingRules(token_cap=100, dummies=True)
    )
    attention = AttentionClass(c1=Fraction(1, 3), c2=2)
    assert item_costs(attention, window, items) == [
        Fraction(7, 3) + 50,
        3 + 162,
        0,
        0,
    ]


def test_dropped_samples_do_not_count() -> None:
    rules = PackingRules(token_cap=4, oversize="drop")
    window = Window(length_N=[2, 9, 2])
    found = scaled(CostModel(omega=1), window, [], rules=rules)
    assert found.attention_ticks_IC.tolist() == [[2 * MAX_UNIT_TICKS]] * 2


def test_lengths_only_are_all_attention() -> None:
    cost = CostModel(omega=Fraction(1, 4), layer_weight_L=(1, 2))
    found = scaled(cost, Window(length_N=[1, 3]), [])
    assert found.omega == 1
    assert attention_share(found) == 1
    assert found.offset_ticks == 0


def test_a_given_share_is_used() -> None:
    cost = CostModel(omega=Fraction(1, 4), expert_per_copy=1000)
    found = scaled(cost, Window(length_N=[1, 3]), [6])
    assert found.omega == Fraction(1, 4)
    assert attention_share(found) == 0.25
    # (1 - omega) of a step in which 2 shards x 2 EP ranks get 6 / 4 copies each.
    assert found.layer_weight_ticks_L.tolist() == [found.unit_ticks // 2]


def test_the_share_follows_from_the_costs() -> None:
    """With c1 = 2 and 5 per copy: 8 / (dp tp cp) against 5 x 12 / (S EP k ETP)."""
    cost = CostModel(attention=(AttentionClass(c1=2),), expert_per_copy=5)
    window = Window(length_N=[1, 3])
    for topology, attention, expert in (
        (Topology(dp=4, ep=2), Fraction(8, 4), Fraction(60, 4)),
        (Topology(dp=4, ep=4, tp=2), Fraction(8, 8), Fraction(60, 8)),
        (Topology(dp=2, ep=2, tp=2, cp=2), Fraction(8, 8), Fraction(60, 8)),
        (Topology(dp=2, ep=2, etp=2, tp=2), Fraction(8, 4), Fraction(60, 4)),
    ):
        found = scaled(cost, window, [5, 7], topology=topology)
        assert found.omega == attention / (attention + expert)


def test_classes_share_attention_by_their_totals() -> None:
    classes = (AttentionClass(name="full", c1=0, c2=1), AttentionClass(name="linear"))
    cost = CostModel(attention=classes, omega=Fraction(3, 4))
    found = scaled(cost, Window(length_N=[1, 3]), [8])
    share_C = found.attention_ticks_IC.sum(axis=0) / TOPOLOGY.dp / found.unit_ticks
    np.testing.assert_allclose(share_C, [0.75 * 10 / 14, 0.75 * 4 / 14], rtol=1e-12)


def test_layers_are_weighted() -> None:
    cost = CostModel(omega=0, layer_weight_L=(1, 3))
    found = scaled(cost, Window(length_N=[1, 3]), [4, 4])
    assert found.layer_weight_ticks_L.tolist() == [
        found.unit_ticks // 4,
        3 * found.unit_ticks // 4,
    ]


def test_layer_weights_must_fit_the_window() -> None:
    cost = CostModel(omega=0, layer_weight_L=(1, 3))
    with pytest.raises(InstanceError, match="2 entries; the window has 3 MoE layers"):
        scaled(cost, Window(length_N=[1]), [1, 1, 1])


def test_layers_and_classes_without_load_count_as_balanced() -> None:
    free = CostModel(attention=(AttentionClass(c1=0),), omega=Fraction(1, 2))
    found = scaled(free, Window(length_N=[1, 3]), [0, 4])
    assert found.offset_ticks == found.unit_ticks * 3 // 4
    assert found.layer_weight_ticks_L.tolist() == [0, found.unit_ticks // 4]
    assert not found.attention_ticks_IC.any()


def test_huge_topologies_get_fewer_ticks() -> None:
    topology = Topology(dp=2**18, ep=2)
    found = scaled(CostModel(omega=1), Window(length_N=[1]), [], topology=topology)
    assert found.unit_ticks < MAX_UNIT_TICKS
    assert found.unit_ticks.bit_count() == 1
    assert int(found.attention_ticks_IC.sum()) < 2**62


@given(cases())
@settings(deadline=None, max_examples=40)
def test_rounding_moves_nothing_by_more_than_half_a_tick(case: Case) -> None:
    problems = case.problems
    items = problems.items
    copies_L = np.zeros(0, dtype=np.int64)
    if problems.placement is not None:
        copies_L = problems.placement.load_LE.sum(axis=1)
    found = scale_costs(case.cost, case.window, items, case.topology, copies_L)
    unit, dp = found.unit_ticks, case.topology.dp
    totals = [sum(item_costs(c, case.window, items)) for c in case.cost.attention]
    balanced = Fraction(found.offset_ticks)
    for c, (attention, total) in enumerate(
        zip(case.cost.attention, totals, strict=True)
    ):
        if total:
            share = found.omega * total / sum(totals)
            balanced += share * unit
            for ticks, value in zip(
                found.attention_ticks_IC[:, c].tolist(),
                item_costs(attention, case.window, items),
                strict=True,
            ):
                assert abs(ticks - unit * share * value * dp / total) <= Fraction(1, 2)
    peers = case.topology.num_shards * case.topology.ep
    for weight, copies in zip(
        found.layer_weight_ticks_L.tolist(), copies_L.tolist(), strict=True
    ):
        balanced += Fraction(weight * copies, peers)
    assert abs(balanced - unit) <= 1 + Fraction(int(copies_L.sum()), 2 * peers)
