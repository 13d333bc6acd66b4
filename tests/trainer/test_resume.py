"""A run that stops and goes on is the run that did not stop."""

import shutil
from pathlib import Path

import pytest

from rpopt.errors import CheckpointError, InstanceError
from rpopt.trainer.metrics import Metrics, read_metrics
from tests.distributed.ranks import results_of
from tests.trainer.test_loop import build, config_file

pytestmark = pytest.mark.dist


def run(path: str, out: str, resume: bool) -> None:
    build(path).run(Path(out), resume=resume)


def assert_same(found: list[Metrics], expected: list[Metrics]) -> None:
    assert [m["step"] for m in found] == [m["step"] for m in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["reward"] == theirs["reward"]
        for name in ("loss", "gradient_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5)


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """It goes on under another EP size and number of ranks too."""
    whole, half = tmp_path / "whole", tmp_path / "half"
    path = config_file(tmp_path, steps=5)
    results_of(run, 2, path, str(whole), False)
    short = config_file(tmp_path, steps=2, checkpoint_every=2)
    results_of(run, 2, short, str(half), False)
    expected = read_metrics(whole)
    assert_same(read_metrics(half), expected[:2])
    for world, ep in ((2, 2), (4, 4)):
        out = tmp_path / f"{world}x{ep}"
        shutil.copytree(half, out)
        results_of(run, world, config_file(tmp_path, steps=5, ep=ep), str(out), True)
        assert_same(read_metrics(out), expected)


def mistakes(path: str, out: str) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        run(path, out, True)
    run(path, out, False)
    with pytest.raises(InstanceError, match="--resume"):
        run(path, out, False)


def test_runs_are_not_mixed_up(tmp_path: Path) -> None:
    path = config_file(tmp_path, steps=1, ep=1, checkpoint_every=1)
    results_of(mistakes, 1, path, str(tmp_path / "out"))
