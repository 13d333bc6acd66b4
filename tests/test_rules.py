"""Packing rules: every rule is checked when it is stated."""

from typing import Any

import pytest

from rpopt.errors import InstanceError
from rpopt.rules import MAX_TOKEN_CAP, PackingRules


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_cap": 0}, ("token_cap = 0", "at least 1")),
        ({"token_cap": 16.5}, ("token_cap = 16.5",)),
        ({"token_cap": 2**40 + 1}, ("token_cap = 1099511627777", "lower it")),
        ({"token_cap": 2**80}, ("token_cap = 1208925819614629174706176",)),
        ({"pad_multiple": 0}, ("pad_multiple = 0",)),
        ({"pad_multiple": 17}, ("pad_multiple = 17 exceeds token_cap = 16",)),
        ({"row_multiple": -1}, ("row_multiple = -1",)),
        ({"row_multiple": 2**21}, ("row_multiple = 2097152 exceeds 1048576",)),
        ({"max_samples_per_cell": 0}, ("max_samples_per_cell = 0",)),
        ({"oversize": "split"}, ("'split'", "'error', 'alone', 'drop'")),
        ({"missing_routes": "drop"}, ("'drop'", "'proportional'")),
        ({"row_order": "random"}, ("'random'", "'largest_first'")),
        ({"dummies": "no"}, ("dummies = 'no'", "True or False")),
        ({"dummies": 1}, ("dummies = 1",)),
    ],
)
def test_bad_rules_are_refused(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InstanceError) as caught:
        PackingRules(**{"token_cap": 16, **changes})
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_defaults() -> None:
    rules = PackingRules(token_cap=MAX_TOKEN_CAP)
    assert (rules.pad_multiple, rules.row_multiple) == (1, 1)
    assert rules.max_samples_per_cell is None
    assert (rules.oversize, rules.missing_routes) == ("error", "proportional")
    assert not rules.dummies
