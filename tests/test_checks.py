"""Violations as one error."""

import pytest

from rpopt.checks import Violation, require_feasible
from rpopt.errors import InfeasibleError


def violations(count: int) -> list[Violation]:
    return [
        Violation(constraint="token cap", message=f"cell {i} is over")
        for i in range(count)
    ]


def test_nothing_broken_is_fine() -> None:
    require_feasible([], "the layout")


def test_the_first_violations_are_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        require_feasible(violations(2), "the layout")
    assert str(caught.value) == (
        "the layout breaks constraints: token cap: cell 0 is over; token cap: cell 1 is"
        " over"
    )


def test_the_others_are_counted() -> None:
    with pytest.raises(InfeasibleError, match="cell 2 is over; and 4 more$"):
        require_feasible(violations(7), "the layout")
