import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.trainer.metrics import FILE, MetricLog, load_ratio, read_metrics


def write(folder: Path, steps: range, **changes) -> None:
    settings = {"first_step": steps.start, "tensorboard": False, **changes}
    with MetricLog(folder, **settings) as log:
        for step in steps:
            log.write({"step": step, "loss": step + 0.5, "reward": None, "load": [1.0]})


def test_lines_come_back_and_reach_the_log(tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="rpopt"):
        write(tmp_path / "run", range(2))
    assert read_metrics(tmp_path / "run") == [
        {"step": 0, "loss": 0.5, "reward": None, "load": [1.0]},
        {"step": 1, "loss": 1.5, "reward": None, "load": [1.0]},
    ]
    assert "step 1: loss 1.5" in caplog.text


def test_a_resumed_run_replaces_what_the_lost_one_wrote_later(tmp_path: Path) -> None:
    write(tmp_path, range(5))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 5, "lo')  # the process was killed here
    write(tmp_path, range(3, 6))
    assert [m["step"] for m in read_metrics(tmp_path)] == [0, 1, 2, 3, 4, 5]


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="extra 'trainer' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, range(3), tensorboard=True)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "load/00"}
    assert [e.value for e in events.Scalars("loss")] == [0.5, 1.5, 2.5]


def test_without_tensorboard_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InstanceError, match=r"rpopt\[trainer\]"):
        write(tmp_path, range(1), tensorboard=True)


def test_the_load_is_that_of_ep_ranks() -> None:
    placement = Placement(
        slot_LE=np.array([[0, 1, 2, 3], [0, 2, 1, 3]]), num_ep_ranks=2
    )
    load_LE = np.array([[3, 1, 0, 0], [3, 1, 0, 0]])  # layer 1: {0, 2} and {1, 3}
    assert load_ratio(load_LE, placement) == [2.0, 1.5]
