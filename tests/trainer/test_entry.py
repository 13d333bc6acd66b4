"""The command that users run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpopt.trainer.metrics import read_metrics
from tests.trainer.cases import RUN

pytestmark = pytest.mark.dist
ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )


def test_two_processes_train_from_one_command(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(RUN)
    out = tmp_path / "out"
    answer = run(
        *TORCHRUN, "-m", "rpopt.trainer", "--config", str(config), "--out", str(out)
    )
    assert answer.returncode == 0, answer.stderr
    metrics = read_metrics(out)
    assert [m["step"] for m in metrics] == [0, 1, 2]
    for each in metrics:
        assert 0 < each["reward"] <= 1
        assert len(each["load_max_over_mean"]) == 2
        assert each["tokens_per_s"] > 0
        assert each["planning_s"] >= each["hidden_s"] >= 0
        assert not each["is_baseline"]


def test_a_mistake_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(RUN.replace("seed = 0", "sed = 0"))
    out = tmp_path / "out"
    answer = run("-m", "rpopt.trainer", "--config", str(config), "--out", str(out))
    assert answer.returncode == 2
    assert answer.stderr.count("error: ") == 1
    assert "sed is not a key; the keys here are seed" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not out.exists()
