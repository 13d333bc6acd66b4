"""Bounds and certificates: derived values and refusals."""

from fractions import Fraction
from typing import Any

import pytest

from rpopt.certificate import Bound, Certificate
from rpopt.errors import CertificateError


def bound(value: int, kind: Any = "arithmetic", name: str = "volume") -> Bound:
    return Bound(name=name, kind=kind, value=value)


def certificate(*bounds: Bound, upper: int = 9) -> Certificate:
    return Certificate(
        problem="rows",
        instance_digest="",
        upper=upper,
        witness={},
        bounds=bounds,
        termination="every bound was tried",
    )


def test_lower_gap_and_closed_follow() -> None:
    open_one = certificate(bound(6), bound(8, "solver", "lp"))
    assert (open_one.lower, open_one.closed) == (8, False)
    assert open_one.gap == Fraction(1, 8)
    assert open_one.best_bound.name == "lp"
    closed = certificate(bound(9), bound(6))
    assert (closed.lower, closed.closed, closed.gap) == (9, True, 0)


def test_arithmetic_bounds_come_first_among_equals() -> None:
    both = certificate(bound(8, "solver", "lp"), bound(8))
    assert both.best_bound.kind == "arithmetic"


def test_a_claim_above_the_witness_is_refused() -> None:
    with pytest.raises(CertificateError, match=r"'volume' = 10 exceeds .* cost 9"):
        certificate(bound(10))


def test_a_certificate_without_bounds_has_no_lower_value() -> None:
    with pytest.raises(CertificateError, match="rows certificate holds no bound"):
        _ = certificate().lower


def test_a_gap_above_nothing_is_finite() -> None:
    assert certificate(bound(0), upper=3).gap == 3


def test_bounds_say_how_they_are_known() -> None:
    with pytest.raises(CertificateError, match="'guess'; use one of"):
        bound(1, "guess")


def test_the_summary_is_one_line() -> None:
    line = certificate(bound(6), bound(8, "solver", "lp")).summary()
    assert line == (
        "rows: 8 <= optimum <= 9, gap 12.500% (lp, solver; every bound was tried)"
    )
    assert "9 <= optimum <= 9, closed" in certificate(bound(9)).summary()
