"""Bounds never exceed the optimum, and are recomputed from their evidence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.layout.bounds import largest_item, layout_bounds, recheck, volume
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.leader_bound import NAME, LeaderClass, Multipliers
from rpopt.plans import Layout
from tests.layout.cases import Case, cases, instance, tiny_instances, worked_example
from tests.oracle.layout import optimal_ticks


@given(tiny_instances())
@settings(deadline=None, max_examples=40)
def test_no_bound_exceeds_the_optimum(problem: LayoutInstance) -> None:
    optimum = optimal_ticks(problem)
    if optimum is not None:
        assert all(bound.value <= optimum for bound in layout_bounds(problem))


@given(cases())
@settings(deadline=None, max_examples=60)
def test_no_bound_exceeds_any_layout(case: Case) -> None:
    problem = case.instance
    ticks = evaluate(problem, case.layout).j_ticks
    for bound in layout_bounds(problem):
        assert bound.kind == "arithmetic"
        assert bound.value <= ticks
        assert recheck(problem, bound) == bound.value


@pytest.mark.parametrize("slots", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_the_volume_bound_of_the_worked_example(slots: tuple[int, ...]) -> None:
    """EP rank totals are 6 and 6, or 7 and 5: 1, or 1/2 + 1/2 x 7/6."""
    problem = worked_example(slots).instance
    expected = {0: 1.0, 1: 13 / 12}[int(slots[1] == 2)]
    np.testing.assert_allclose(
        volume(problem).value / problem.unit_ticks, expected, rtol=1e-12
    )


def test_the_volume_bound_in_integers() -> None:
    problem = instance(
        attention_ticks_IC=[[16, 1], [9, 1], [9, 1], [4, 1], [4, 1], [1, 2]],
        layer_weight_ticks_L=[5],
        offset_ticks=100,
        shard_of_rank_D=[0, 0],
    )
    # ceil(43 / 2) + ceil(7 / 2) + 5 x 8 token copies on EP rank 0.
    assert volume(problem).value == 100 + 22 + 4 + 40
    assert dict(volume(problem).evidence) == {"ep_rank_L": [0]}
    split = replace(problem, shard_of_rank_D=[0, 1])
    assert volume(split).value == 100 + -(-(43 + 7 + 40) // 2)


def test_rounding_up_term_by_term_would_be_wrong() -> None:
    """Two layers with one token copy each, on different shards."""
    problem = instance(
        weight_I=[1, 1],
        num_samples_I=[1, 1],
        attention_ticks_IC=[[0], [0]],
        load_ILP=[[[1], [0]], [[0], [1]]],
        layer_weight_ticks_L=[1, 1],
        num_rows=1,
        shard_of_rank_D=[0, 1],
    )
    layout = Layout(row_I=[0, 0], rank_I=[0, 1], num_rows=1)
    assert evaluate(problem, layout).j_ticks == optimal_ticks(problem) == 1
    assert volume(problem).value == 1
    assert -(-1 // 2) + -(-1 // 2) == 2  # per layer: weight x ceil(copies / S)


def test_a_giant_exceeds_the_volume_bound() -> None:
    problem = instance(
        weight_I=[6, 1],
        num_samples_I=[1, 1],
        attention_ticks_IC=[[36], [1]],
        load_ILP=[[[2, 4]], [[1, 0]]],
        num_rows=1,
        shard_of_rank_D=[0, 1],
    )
    bound = largest_item(problem)
    assert (bound.value, dict(bound.evidence)) == (36 + 5 * 4, {"item": 0})
    assert bound.value == optimal_ticks(problem) > volume(problem).value == 29
    assert max(b.value for b in layout_bounds(problem)) == bound.value


def test_the_leader_bound_is_rechecked_too() -> None:
    """One class and alpha = 1 / h: each item priced by its share of perfect balance."""
    problem = instance()
    ticks_I = problem.attention_ticks_IC[:, 0] + 2 * 5 * problem.load_ILP[:, 0, 0]
    anyone = LeaderClass(start=0, alpha=1, room=0, theta=((0, 0, 5),))
    multipliers = Multipliers(
        attention_class=0,
        denominator=2,
        price_I=tuple(ticks_I.tolist()),
        classes=(anyone,),
    )
    bound = evidence(NAME, multipliers.evidence())
    assert recheck(problem, bound) == volume(problem).value


def test_no_layers() -> None:
    problem = instance(load_ILP=np.zeros((6, 0, 2)), layer_weight_ticks_L=[])
    assert [(b.name, b.value) for b in layout_bounds(problem)] == [
        ("volume", 22),
        ("largest item", 16),
    ]
    assert all(recheck(problem, b) == b.value for b in layout_bounds(problem))


def test_another_ep_rank_proves_less() -> None:
    problem = instance()
    bound = replace(volume(problem), evidence={"ep_rank_L": [1]})
    assert recheck(problem, bound) == volume(problem).value - 5 * (8 - 7)


def test_a_false_value_is_recomputed() -> None:
    problem = instance()
    for bound in layout_bounds(problem):
        assert recheck(problem, replace(bound, value=bound.value + 1)) == bound.value


def evidence(name: str, fields: dict[str, Any]) -> Bound:
    return Bound(name=name, kind="arithmetic", value=1, evidence=fields)


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (
            evidence("trust me", {}),
            "no arithmetic bound .* 'trust me'; known are volume",
        ),
        (evidence("volume", {}), r"has the fields \[\]"),
        (evidence("volume", {"ep_rank_L": []}), "0 EP ranks for 1 layers"),
        (evidence("volume", {"ep_rank_L": [2]}), "out of bounds"),
        (evidence("volume", {"ep_rank_L": [-1]}), "-1 is outside"),
        (evidence("volume", {"ep_rank_L": ["0"]}), "needs whole numbers"),
        (evidence("volume", {"ep_rank_L": None}), "it needs 1"),
        (evidence("volume", {"ep_rank_L": [0], "note": 1}), "fields .*'note'"),
        (evidence("largest item", {"item": 6}), "out of bounds"),
        (evidence("largest item", {"item": -1}), "at least 0"),
        (evidence("largest item", {"item": True}), "not a whole number"),
        (evidence("largest item", {"item": "0"}), "not a whole number"),
        (evidence("largest item", {"ep_rank_L": [0]}), "fields"),
    ],
)
def test_tampered_evidence_is_refused(bound: Bound, message: str) -> None:
    with pytest.raises(CertificateError, match=message):
        recheck(instance(), bound)
