"""Violations: what a checker says about a solution."""

from collections.abc import Sequence
from dataclasses import dataclass

from rpopt.errors import InfeasibleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken constraint.

    Parameters
    ----------
    constraint
        A short name, such as "token cap" or "empty cell".
    message
        What is broken, with the numbers.
    """

    constraint: str
    message: str


def require_feasible(violations: Sequence[Violation], what: str) -> None:
    """Raise an `InfeasibleError` that names the first violations, if there are any."""
    if violations:
        shown = "; ".join(f"{v.constraint}: {v.message}" for v in violations[:3])
        more = len(violations) - 3
        tail = f"; and {more} more" if more > 0 else ""
        raise InfeasibleError(f"{what} breaks constraints: {shown}{tail}")
