"""Bounds never exceed the optimum, are exact for small ranks, and can be rechecked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.placement.bounds import (
    METHODS,
    SortedLoads,
    decisive_experts,
    peak_bounds,
    recheck,
)
from rpopt.placement.heuristics import snake
from rpopt.placement.instance import PlacementInstance, evaluate
from tests.oracle.placement import optimal_peak, optimal_peaks
from tests.placement.cases import fuzz, instance, instances, tiny_instances


def values(problem: PlacementInstance) -> list[int]:
    return [bound.value for bound in peak_bounds(problem)]


@fuzz
@given(tiny_instances())
def test_no_term_exceeds_the_optimum(problem: PlacementInstance) -> None:
    optimum_L = optimal_peaks(problem)
    loads = SortedLoads.of(problem)
    for method in METHODS.values():
        assert (method(loads) <= optimum_L[:, None]).all()


@pytest.mark.parametrize("seed", range(3))
def test_no_term_exceeds_the_optimum_with_three_per_rank(seed: int) -> None:
    rng = np.random.default_rng(seed)
    load_LE = np.exp(1.2 * rng.standard_normal((20, 9))) * 100
    problem = instance(load_LE.astype(np.int64), 3)
    optimum_L = optimal_peaks(problem)
    loads = SortedLoads.of(problem)
    assert all((m(loads) <= optimum_L[:, None]).all() for m in METHODS.values())
    assert (np.array(values(problem)) == optimum_L).mean() >= 0.5


@fuzz
@given(instances())
def test_exact_for_one_and_two_experts_per_rank(problem: PlacementInstance) -> None:
    if problem.experts_per_rank <= 2:
        assert values(problem) == evaluate(problem, snake(problem)).peak_L.tolist()


@fuzz
@given(tiny_instances())
def test_every_bound_is_rechecked_from_its_evidence(problem: PlacementInstance) -> None:
    for layer, bound in enumerate(peak_bounds(problem)):
        assert bound.kind == "arithmetic"
        assert bound.evidence["layer"] == layer
        assert recheck(problem, bound) == bound.value


def test_the_evidence_names_term_q_and_expert() -> None:
    problem = instance(
        [
            [1, 2, 3, 4, 5, 6],  # 11 or more on one of two ranks
            [1, 1, 90, 1, 1, 1],  # expert 2 and two others
            [9, 9, 9, 1, 1, 1],  # two of three experts share one of two ranks
        ],
        2,
    )
    found = peak_bounds(problem)
    assert [(b.name, b.value) for b in found] == [
        ("mean", 11),
        ("pigeonhole", 92),
        ("pigeonhole", 19),
    ]
    assert [dict(b.evidence) for b in found] == [
        {"layer": 0},
        {"layer": 1, "q": 1, "expert": 2},
        {"layer": 2, "q": 2, "expert": 2},
    ]


def test_two_hot_experts_need_two_sets_of_companions() -> None:
    # Beside a 30 each, the four coldest, 0 0 4 4: 34 on one of both ranks.
    load_E = [30, 30, 4, 4, 4, 4, 4, 0, 0]
    (bound,) = peak_bounds(instance([load_E], 3))
    assert (bound.name, bound.value) == ("spread", 34)
    assert dict(bound.evidence) == {"layer": 0, "q": 2, "expert": 1}
    assert optimal_peak(load_E, 3) == 34


def tampered(bound: Bound) -> dict[str, Bound]:
    def evidence(**changes: Any) -> Bound:
        return replace(bound, evidence={**bound.evidence, **changes})

    return {
        "unknown name": replace(bound, name="volume"),
        "another term": replace(bound, name="mean"),
        "no evidence": replace(bound, evidence={}),
        "layer out of range": evidence(layer=2),
        "layer below zero": evidence(layer=-1),
        "layer is no number": evidence(layer="0"),
        "layer is a boolean": evidence(layer=False),
        "q out of range": evidence(q=9),
        "q is no number": evidence(q=None),
        "another expert": evidence(expert=3),
        "something else": evidence(note="trust me"),
    }


@pytest.mark.parametrize("change", tampered(Bound(name="", kind="solver", value=0)))
def test_tampered_evidence_is_refused(change: str) -> None:
    problem = instance([[90, 1, 2, 3, 4, 5], [1, 1, 1, 1, 1, 1]], 2)
    bound = tampered(peak_bounds(problem)[0])[change]
    with pytest.raises(CertificateError, match=r"bound"):
        recheck(problem, bound)


def test_a_false_value_is_recomputed() -> None:
    problem = instance([[90, 1, 2, 3, 4, 5]], 2)
    (bound,) = peak_bounds(problem)
    assert recheck(problem, replace(bound, value=bound.value + 1)) == bound.value == 93


def test_decisive_experts_say_that_no_permutation_helps() -> None:
    problem = instance([[3, 2, 1, 2], [1, 50, 2, 3], [0, 0, 0, 0]], 2)
    (found,) = decisive_experts(problem)
    assert (found.layer, found.expert, found.load) == (1, 1, 50)
    assert (found.floor, found.mean) == (51, 28)
    assert str(found).startswith(
        "layer 1: no permutation can help: bound set by expert 1 (50 token copies"
    )


@fuzz
@given(tiny_instances())
def test_a_decisive_expert_bounds_its_layer(problem: PlacementInstance) -> None:
    optimum_L = optimal_peaks(problem)
    for found in decisive_experts(problem):
        assert found.mean < found.floor <= optimum_L[found.layer]
