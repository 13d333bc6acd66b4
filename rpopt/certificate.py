"""Bounds and certificates: what is claimed, and how anyone can check it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

from rpopt.errors import CertificateError
from rpopt.records import Record

BoundKind = Literal["arithmetic", "solver"]
Problem = Literal["rows", "placement", "layout"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound(Record):
    """A lower bound that says how it is known.

    Parameters
    ----------
    name
        The bounding method.
    kind
        "arithmetic": anyone can recompute it exactly, in integers, without a solver;
        "solver": a solver's floating-point claim with its tolerances.
    value
        The bound, in the integer unit of the problem's cost.
    evidence
        JSON values from which an arithmetic bound is recomputed; for a solver bound,
        its raw value, status and tolerances.
    """

    SCHEMA: ClassVar[str] = "rpopt.bound/1"

    name: str
    kind: BoundKind
    value: int
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the kind."""
        if self.kind not in get_args(BoundKind):
            raise CertificateError(
                f"bound {self.name!r} is of kind {self.kind!r}; use one of"
                f" {get_args(BoundKind)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Certificate(Record):
    """A witness, every bound that was tried, and what follows from them.

    Parameters
    ----------
    problem
        "rows" (value: rows), "placement" (one layer; token copies of the peak) or
        "layout" (ticks of J).
    instance_digest
        Digest of the instance that the claim is about.
    upper
        The witness's exact cost.
    witness
        The solution as JSON values; enough to recompute `upper`.
    bounds
        Every bound tried.
    termination
        Why the search for bounds and witnesses ended.
    versions
        Pairs (package, version) that took part.

    Raises
    ------
    CertificateError
        When a bound exceeds the witness's cost.
    """

    SCHEMA: ClassVar[str] = "rpopt.certificate/1"

    problem: Problem
    instance_digest: str
    upper: int
    witness: Mapping[str, Any]
    bounds: tuple[Bound, ...]
    termination: str
    versions: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check that no bound exceeds the witness."""
        for bound in self.bounds:
            if bound.value > self.upper:
                raise CertificateError(
                    f"bound {bound.name!r} = {bound.value} exceeds the witness's cost"
                    f" {self.upper}; one of the two is wrong"
                )

    @property
    def best_bound(self) -> Bound:
        """The strongest bound; arithmetic ones first among equals."""
        if not self.bounds:
            raise CertificateError(f"the {self.problem} certificate holds no bound")
        return max(self.bounds, key=lambda b: (b.value, b.kind == "arithmetic"))

    @property
    def lower(self) -> int:
        """The strongest bound's value."""
        return self.best_bound.value

    @property
    def closed(self) -> bool:
        """Whether the numbers meet."""
        return self.lower == self.upper

    @property
    def gap(self) -> Fraction:
        """(upper - lower) / lower, exact."""
        return Fraction(self.upper - self.lower, max(1, self.lower))

    def require_about(self, problem: Problem, instance_digest: str) -> None:
        """Check which problem and instance the certificate speaks about.

        Raises
        ------
        CertificateError
            When it is about something else.
        """
        if self.problem != problem:
            raise CertificateError(
                f"a {self.problem} certificate does not speak about {problem}"
            )
        if self.instance_digest != instance_digest:
            raise CertificateError(
                f"the certificate is about instance {self.instance_digest[:12]}, not"
                f" {instance_digest[:12]}; pass the instance it was made for"
            )

    def summary(self) -> str:
        """Return one line: lower, upper, evidence."""
        best = self.best_bound
        state = "closed" if self.closed else f"gap {float(self.gap):.3%}"
        return (
            f"{self.problem}: {self.lower} <= optimum <= {self.upper}, {state}"
            f" ({best.name}, {best.kind}; {self.termination})"
        )
