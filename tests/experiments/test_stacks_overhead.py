"""The overhead study runs, and counts what happens outside the planner."""

import time
from pathlib import Path

import pytest

from experiments import stacks_overhead
from experiments.config import read_config
from experiments.runner import Run
from rpopt.stacks import settings as module

CONFIG = Path(stacks_overhead.__file__).parent / "configs/stacks_overhead_smoke.toml"


def test_every_drop_in_is_measured() -> None:
    study = read_config(CONFIG, stacks_overhead.Study)
    names = ("samples", "layers", "experts", "sweeps", "repeats")
    for method in stacks_overhead.PREPARE:
        outcome = stacks_overhead.solve(
            Run(
                problem="stacks",
                instance="synthetic",
                method=method,
                seed=0,
                stop="",
                params={name: getattr(study, name) for name in names},
            )
        )
        assert outcome.objective is not None
        assert outcome.objective > 0


def test_time_outside_the_planner_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_overhead, "plan", lambda: time.sleep(0.02))
    own = stacks_overhead.Clock()

    def call() -> None:
        module.plan()  # type: ignore[call-arg]
        time.sleep(0.04)
        own.timed(time.sleep)(0.08)

    ours, stacks = stacks_overhead.shares(call, own)
    assert ours > 1
    assert stacks > 2
