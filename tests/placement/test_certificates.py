"""Certificates hold as they are made, and nothing else does."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from rpopt.certificate import Bound, Certificate
from rpopt.errors import CertificateError, InfeasibleError
from rpopt.placement.certificates import certify_placement, recheck
from rpopt.placement.heuristics import identity, place
from rpopt.placement.instance import PlacementInstance
from rpopt.plans import Placement
from tests.oracle.placement import optimal_peaks
from tests.placement.cases import fuzz, instance, tiny_instances

PROBLEM = instance([[1, 4, 3, 2, 5, 90], [8, 8, 9, 1, 1, 2]], 2)


@fuzz
@given(tiny_instances())
def test_certificates_hold_and_enclose_the_optimum(problem: PlacementInstance) -> None:
    found = certify_placement(problem, place(problem))
    optimum_L = optimal_peaks(problem)
    for layer, certificate in enumerate(found):
        assert certificate.witness["layer"] == layer
        assert recheck(certificate, problem) == certificate.lower
        assert certificate.lower <= optimum_L[layer] <= certificate.upper
        assert (certificate.termination == "bound met") == certificate.closed


def test_an_open_layer_says_so() -> None:
    certificate = certify_placement(PROBLEM, identity(PROBLEM))[1]
    assert not certificate.closed
    assert certificate.termination == "heuristics ended above the bound"
    assert certificate.summary().startswith("placement: 17 <= optimum <= 25, gap")


def test_a_foreign_placement_gets_no_certificate() -> None:
    with pytest.raises(InfeasibleError, match="the placement breaks constraints"):
        certify_placement(PROBLEM, Placement.identity(1, 6, 2))


def test_a_certificate_survives_json() -> None:
    made = certify_placement(PROBLEM, place(PROBLEM))[0]
    bounds = tuple(
        replace(b, evidence=json.loads(json.dumps(b.evidence))) for b in made.bounds
    )
    witness = json.loads(json.dumps(made.witness))
    assert recheck(replace(made, bounds=bounds, witness=witness), PROBLEM) == 93


def test_a_solver_bound_is_not_rechecked() -> None:
    made = certify_placement(PROBLEM, identity(PROBLEM))[1]
    claim = Bound(name="highs", kind="solver", value=20)
    assert recheck(replace(made, bounds=(*made.bounds, claim)), PROBLEM) == 17


def tampered(made: Certificate) -> dict[str, Certificate]:
    def witness(**changes: Any) -> Certificate:
        return replace(made, witness={**made.witness, **changes})

    def bound(**changes: Any) -> Certificate:
        return replace(made, bounds=(replace(made.bounds[0], **changes),))

    slot_E = list(made.witness["slot_E"])
    return {
        "problem": replace(made, problem="layout"),
        "instance": replace(made, instance_digest="0" * 64),
        "upper": replace(made, upper=made.upper + 1),
        "no layer": replace(made, witness={"slot_E": slot_E}),
        "no slots": replace(made, witness={"layer": 0}),
        "more than that": witness(note="trust me"),
        "another layer": witness(layer=1),
        "layer out of range": witness(layer=2),
        "layer below zero": witness(layer=-1),
        "layer is no number": witness(layer="0"),
        "slot twice": witness(slot_E=[slot_E[1], *slot_E[1:]]),
        "slot missing": witness(slot_E=slot_E[:-1]),
        "slots are no numbers": witness(slot_E=["a"] * 6),
        "slots of slots": witness(slot_E=[slot_E]),
        "other slots": witness(slot_E=[0, 1, 2, 3, 4, 5]),
        "bound too low": bound(value=made.bounds[0].value - 1),
        "bound of another layer": bound(name="mean", value=15, evidence={"layer": 1}),
        "no evidence": bound(evidence={}),
        "unknown bound": bound(name="volume"),
    }


CHANGES = tampered(certify_placement(PROBLEM, place(PROBLEM))[0])


@pytest.mark.parametrize("change", CHANGES)
def test_a_tampered_certificate_is_refused(change: str) -> None:
    with pytest.raises(CertificateError):
        recheck(CHANGES[change], PROBLEM)


def test_a_bound_above_the_optimum_cannot_be_written() -> None:
    made = certify_placement(PROBLEM, place(PROBLEM))[0]
    with pytest.raises(CertificateError, match="exceeds the witness's cost"):
        replace(made, bounds=(replace(made.bounds[0], value=made.upper + 1),))
