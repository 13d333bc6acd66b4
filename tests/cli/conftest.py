"""Fixtures of the command line's tests."""

from pathlib import Path

import pytest

from rpopt.io import write_json
from tests.cases import make_plan, medium_case
from tests.cli.command import Run, runner, save


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command."""
    return runner(capsys)


@pytest.fixture
def window_file(tmp_path: Path) -> Path:
    """The window of `medium_case`."""
    return save(tmp_path / "w.npz", medium_case().window)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """A plan of it, made without annealing."""
    path = tmp_path / "w.plan.json"
    write_json(path, make_plan(medium_case()))
    return path
