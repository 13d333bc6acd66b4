"""Metrics of a run: to the log, to `metrics.jsonl` and, if wished, to TensorBoard."""

import json
import logging
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.records import Int64Array

_log = logging.getLogger(__name__)
Metrics = dict[str, Any]
FILE = "metrics.jsonl"


class MetricLog:
    """Writes the metrics of every step; the first rank has one.

    Parameters
    ----------
    folder
        The folder of the run.
    first_step
        Lines of this step and later ones, left by an interrupted run, are dropped.
    tensorboard
        Whether to write for TensorBoard.

    Raises
    ------
    InstanceError
        When TensorBoard is asked for and missing.
    """

    def __init__(self, folder: Path, *, first_step: int, tensorboard: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._board = _board(folder, first_step) if tensorboard else None
        path = folder / FILE
        kept = read_metrics(folder) if path.exists() else []
        lines = [_line(m) for m in kept if m["step"] < first_step]
        path.write_text("".join(lines), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> "MetricLog":
        """Nothing to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, metrics: Metrics) -> None:
        """Write one step."""
        self._file.write(_line(metrics))
        self._file.flush()
        if self._board is not None:
            for name, value in _scalars(metrics).items():
                self._board.add_scalar(name, value, metrics["step"])
        shown = (f"{k} {v:.4g}" for k, v in metrics.items() if isinstance(v, float))
        _log.info("step %d: %s", metrics["step"], ", ".join(shown))


def read_metrics(folder: Path) -> list[Metrics]:
    """Return the metrics of a run, one dictionary per step.

    A last line that was cut off is left out.
    """
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def load_ratio(load_LE: Int64Array, placement: Placement) -> list[float]:
    """Return the load of the busiest EP rank over the mean, for each MoE layer."""
    experts_LE = placement.expert_of_slot_LE
    by_slot_LE = np.take_along_axis(load_LE, experts_LE, axis=1)
    load_LP = by_slot_LE.reshape(len(load_LE), placement.num_ep_ranks, -1).sum(axis=2)
    return [float(ratio) for ratio in load_LP.max(axis=1) / load_LP.mean(axis=1)]


def _line(metrics: Metrics) -> str:
    return json.dumps(metrics) + "\n"


def _scalars(metrics: Metrics) -> dict[str, float]:
    """Return all numbers by name; those of a list get a number each."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, list):
            found |= {f"{name}/{i:02d}": number for i, number in enumerate(value)}
        elif value is not None and name != "step":
            found[name] = float(value)
    return found


def _board(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InstanceError(
            "tensorboard = true needs the package tensorboard; install"
            " 'rpopt[trainer]' or set it to false"
        ) from error
    return SummaryWriter(folder, purge_step=first_step)
