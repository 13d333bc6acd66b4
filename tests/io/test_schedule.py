"""A user's own schedule."""

import json
from pathlib import Path
from typing import Any

import pytest

from rpopt.errors import FileFormatError
from rpopt.io import read_schedule


def test_a_schedule_is_read(tmp_path: Path) -> None:
    ranks = [[[0, 5], [3]], [[1], [2, 4]]]
    (tmp_path / "a").write_text(json.dumps({"micro_batches": ranks}))
    assert read_schedule(tmp_path / "a") == ranks


@pytest.mark.parametrize(
    "whole",
    [
        [],
        {},
        {"micro_batches": [], "x": 1},
        {"micro_batches": [[0]]},
        {"micro_batches": [[[0.0]]]},
        {"micro_batches": [[[True]]]},
        {"micro_batches": [[[[0]]]]},
    ],
)
def test_other_forms_are_refused(tmp_path: Path, whole: Any) -> None:
    (tmp_path / "a").write_text(json.dumps(whole))
    with pytest.raises(FileFormatError, match="micro_batches"):
        read_schedule(tmp_path / "a")
