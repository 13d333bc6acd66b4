"""Row certificates: true, closed where they should be, and tamper-proof."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.certificate import Bound, Certificate
from rpopt.errors import CertificateError, InfeasibleError
from rpopt.packing import PackingInstance, PackingSolution, certify_rows, recheck
from rpopt.packing.knapsack import dual_weights
from rpopt.packing.rows import in_rows, rows_certificate
from rpopt.records import plain
from tests.oracle import packing as oracle
from tests.packing.examples import instances, make, tiny


@pytest.mark.parametrize("seed", range(60))
def test_the_optimum_lies_between(seed: int) -> None:
    instance = tiny(seed)
    certificate = certify_rows(instance)
    optimum = instance.rows_for(oracle.min_cells(instance))
    assert certificate.lower <= optimum <= certificate.upper
    assert recheck(certificate, instance) == certificate.lower


@settings(max_examples=50, deadline=None)
@given(instance=instances())
def test_every_certificate_holds(instance: PackingInstance) -> None:
    certificate = certify_rows(instance)
    assert recheck(certificate, instance) == certificate.lower
    assert certificate.upper % instance.row_multiple == 0


def test_cells_are_rows_of_one() -> None:
    certificate = certify_rows(make([5, 5, 5, 3], 10))
    assert (certificate.lower, certificate.upper) == (2, 2)
    assert certificate.termination == "bound met"
    assert certificate.summary().startswith("rows: 2 <= optimum <= 2, closed (l1")


def test_the_row_multiple_closes_what_cells_leave_open() -> None:
    """No bound here proves 5 cells, but one row of 8 ranks is clearly needed."""
    weights = [4, 4, 4, 3, 3, 3, 3, 3, 3, 5, 5]
    in_cells = make(weights, 10)
    assert certify_rows(replace_rows(in_cells, 8, 1)).closed
    assert certify_rows(replace_rows(in_cells, 1, 4)).upper == 4 + 4 * (
        oracle.min_cells(in_cells) > 4
    )


def replace_rows(
    instance: PackingInstance, num_ranks: int, row_multiple: int
) -> PackingInstance:
    return replace(instance, num_ranks=num_ranks, row_multiple=row_multiple)


def test_more_ranks_than_items() -> None:
    certificate = certify_rows(make([5, 4, 3], 10, num_ranks=4, row_multiple=2))
    assert (certificate.lower, certificate.upper, certificate.closed) == (2, 2, True)
    assert "3 items cannot fill 8 cells" in certificate.termination
    assert "5 dummies" in certificate.termination


def test_a_bound_keeps_its_evidence_in_rows() -> None:
    instance = make([6] * 9, 10, num_ranks=2, row_multiple=2)
    bound = in_rows(instance, dual_weights(instance, np.ones(9, dtype=np.int64)))
    assert (bound.name, bound.value, bound.evidence["cells"]) == ("dual_weights", 6, 9)
    assert bound.evidence["method"]["max_cell_value"] == 1


def test_an_infeasible_packing_gets_no_certificate() -> None:
    instance = make([6, 6], 10)
    with pytest.raises(InfeasibleError, match="token cap"):
        rows_certificate(instance, PackingSolution(cell_I=np.array([0, 0])), [])


def test_a_solver_bound_is_carried_along_but_not_vouched_for() -> None:
    instance = make([6, 6, 4, 4], 10)
    packed = PackingSolution(cell_I=np.array([0, 1, 0, 1]))
    claim = Bound(name="highs", kind="solver", value=2, evidence={"raw": 1.9999})
    certificate = rows_certificate(instance, packed, [claim])
    assert certificate.closed
    assert recheck(certificate, instance) == 0


def certificate_of_every_kind() -> tuple[PackingInstance, Certificate]:
    rng = np.random.default_rng(4)
    instance = make(
        rng.integers(20, 60, 24).tolist(),
        100,
        num_ranks=2,
        max_samples_per_cell=4,
    )
    start = certify_rows(instance)
    bounds = [
        replace(b, value=b.evidence["cells"], evidence=b.evidence["method"])
        for b in start.bounds
    ]
    bounds.append(dual_weights(instance, instance.weight_I))
    packed = PackingSolution(cell_I=start.witness["cell_I"])
    return instance, rows_certificate(instance, packed, bounds)


def rebuilt(data: dict[str, Any]) -> Certificate:
    fields = {**data, "bounds": tuple(Bound(**b) for b in data["bounds"])}
    return Certificate(**{**fields, "versions": ()})


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every whole number in JSON values."""
    if isinstance(value, dict):
        for key in value:
            yield from numbers(value[key], (*path, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value):
            yield from numbers(inner, (*path, key))
    elif isinstance(value, int):
        yield path


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize("change", [-1, 1, 7, 10**6, -(10**6), 10**18, 10**40])
def test_any_changed_number_is_an_error_or_as_good(change: int) -> None:
    instance, certificate = certificate_of_every_kind()
    text = json.dumps(plain(certificate))
    assert recheck(rebuilt(json.loads(text)), instance) == certificate.lower
    paths = list(numbers(json.loads(text)))
    caught = 0
    for path in paths:
        data = json.loads(text)
        at(data, path[:-1])[path[-1]] += change
        try:
            lower = recheck(rebuilt(data), instance)
        except CertificateError:
            caught += 1
            continue
        assert lower == certificate.lower
        assert data["upper"] == certificate.upper
        assert path[0] == "witness" or "method" in path
    assert caught > len(paths) // 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("problem", "layout", "layout certificate"),
        ("instance_digest", "0" * 64, "about instance"),
        ("witness", {}, "witness"),
        ("witness", {"cell_I": [0, "1"]}, "witness"),
        ("witness", {"cell_I": None}, "witness"),
        ("witness", {"cell_I": [0, 0, 0]}, "every item once"),
    ],
)
def test_tampered_fields(field: str, value: Any, message: str) -> None:
    instance, certificate = certificate_of_every_kind()
    with pytest.raises(CertificateError, match=message):
        recheck(replace(certificate, **{field: value}), instance)


@pytest.mark.parametrize("evidence", [{}, {"cells": 1}, {"cells": 1, "method": {}}])
def test_evidence_that_is_missing(evidence: dict[str, Any]) -> None:
    instance, certificate = certificate_of_every_kind()
    stripped = tuple(replace(b, evidence=evidence) for b in certificate.bounds)
    with pytest.raises(CertificateError, match="evidence"):
        recheck(replace(certificate, bounds=stripped), instance)


def test_another_instance_is_refused() -> None:
    instance, certificate = certificate_of_every_kind()
    with pytest.raises(CertificateError, match="pass the instance"):
        recheck(certificate, replace(instance, capacity=101))
