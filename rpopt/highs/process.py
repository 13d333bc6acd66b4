"""HiGHS as a child process: starting, asking and killing it, and reading its status."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rpopt.errors import InstanceError, SolverError
from rpopt.highs.linear import LinearModel

KILL_GRACE_S = 1.0
"""How long after its deadline a child may still answer."""
CHILD_SCRIPT = Path(__file__).with_name("child.py")
_WRONG_VERSIONS = {"1.14.0": "its presolve gave wrong optima"}


class Termination(StrEnum):
    """Why a run ended, as the solver says; that a gap is closed only numbers say."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    UNBOUNDED_OR_INFEASIBLE = "unbounded_or_infeasible"
    TIME_LIMIT = "time_limit"
    TIME_LIMIT_KILLED = "time_limit_killed"
    NODE_LIMIT = "node_limit"
    ITERATION_LIMIT = "iteration_limit"
    OBJECTIVE_BOUND = "objective_bound"
    OBJECTIVE_TARGET = "objective_target"
    INTERRUPTED = "interrupted"
    MEMORY_LIMIT = "memory_limit"
    FAILED = "failed"


TERMINATIONS = {
    "kNotset": Termination.FAILED,
    "kLoadError": Termination.FAILED,
    "kModelError": Termination.FAILED,
    "kPresolveError": Termination.FAILED,
    "kSolveError": Termination.FAILED,
    "kPostsolveError": Termination.FAILED,
    "kModelEmpty": Termination.FAILED,  # no `LinearModel` is empty
    "kOptimal": Termination.OPTIMAL,
    "kInfeasible": Termination.INFEASIBLE,
    "kUnboundedOrInfeasible": Termination.UNBOUNDED_OR_INFEASIBLE,
    "kUnbounded": Termination.UNBOUNDED,
    "kObjectiveBound": Termination.OBJECTIVE_BOUND,
    "kObjectiveTarget": Termination.OBJECTIVE_TARGET,
    "kTimeLimit": Termination.TIME_LIMIT,
    "kIterationLimit": Termination.ITERATION_LIMIT,
    "kUnknown": Termination.FAILED,
    "kSolutionLimit": Termination.NODE_LIMIT,  # nodes are the only such limit we set
    "kInterrupt": Termination.INTERRUPTED,
    "kMemoryLimit": Termination.MEMORY_LIMIT,
    "kHighsInterrupt": Termination.INTERRUPTED,
}


def read_status(answer: dict[str, Any], log_tail: str = "") -> Termination:
    """Return the termination of an answer; a failed run counts, whatever its status.

    Raises
    ------
    SolverError
        For a status that is not in `TERMINATIONS`.
    """
    status, run = answer["status"], answer["run"]
    if status not in TERMINATIONS or run not in ("kOk", "kWarning", "kError"):
        raise SolverError(
            f"HiGHS ended a run with {run} and the unknown status {status!r}; use a"
            f" version of highspy that rpopt was tested with\n{log_tail}"
        )
    return Termination.FAILED if run == "kError" else TERMINATIONS[status]


def check_time_limit(time_limit_s: float) -> None:
    """Raise an `InstanceError` for a time limit that is none."""
    if not 0 <= time_limit_s <= 1e6:
        raise InstanceError(f"time_limit_s = {time_limit_s}; it must be in [0, 1e6]")


def check_version(version: str) -> None:
    """Raise a `SolverError` for a version of HiGHS that is known to be wrong."""
    if version in _WRONG_VERSIONS:
        raise SolverError(
            f"highspy {version} is refused: {_WRONG_VERSIONS[version]}; install another"
            " version (highspy>=1.15)"
        )


def payload(model: LinearModel) -> dict[str, Any]:
    """Return the model as the plain arrays that the child reads, as a minimisation."""
    sign = -1.0 if model.maximize else 1.0
    return {
        "cost": sign * model.col_cost,
        "offset": sign * model.offset,
        "col_lower": model.col_lower,
        "col_upper": model.col_upper,
        "integrality": model.integrality,
        "row_lower": model.row_lower,
        "row_upper": model.row_upper,
        "starts": model.starts.astype(np.int32),
        "rows": model.rows.astype(np.int32),
        "coefs": model.coefs,
    }


class ChildGoneError(Exception):
    """The child ended without an answer; the message says how."""

    def __init__(self, message: str, *, killed: bool) -> None:
        super().__init__(message)
        self.killed = killed  # by us, at its deadline


class Child:
    """One process with HiGHS in it, killed at a deadline, on close and with its parent.

    Parameters
    ----------
    kill_at_s
        When to kill it, on the clock of `time.monotonic`.

    Raises
    ------
    SolverError
        When highspy cannot be imported there, or is of a refused version.
    ChildGoneError
        When the child ends before it could say so.
    """

    def __init__(self, kill_at_s: float) -> None:
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.killed = False
        self.version = ""
        self._timer: threading.Timer | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **single},
        )
        try:
            self.arm(kill_at_s)
            self._send(sys.path)
            kind, text, *_ = self.receive()
            if kind != "hello":
                raise SolverError(f"HiGHS cannot be started:\n{text}")
            check_version(text)
            self.version = text
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the child itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def arm(self, kill_at_s: float) -> None:
        """Kill the child at a time, unless disarmed or armed anew before."""
        self.disarm()
        self._timer = threading.Timer(
            max(0.0, kill_at_s - time.monotonic()), self._kill
        )
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        """Let the child live."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send(self, name: str, *arguments: Any) -> None:
        """Send a request; a child that is gone shows at the next `receive`."""
        self._send((name, *arguments))

    def _send(self, message: Any) -> None:
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pickle.dump(message, stream, protocol=5)
            stream.flush()

    def receive(self) -> tuple[Any, ...]:
        """Return the next message of the child."""
        stream = self._process.stdout
        assert stream is not None
        try:
            message: tuple[Any, ...] = pickle.load(stream)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise ChildGoneError(self._obituary(), killed=self.killed) from error
        return message

    def _obituary(self) -> str:
        if self.killed:
            return "HiGHS was killed: it did not stop at its deadline"
        try:
            code = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return "HiGHS stopped answering"
        how = f"code {code}"
        with contextlib.suppress(ValueError):
            how = f"signal {signal.Signals(-code).name}"
        return f"the process of HiGHS ended by itself with {how}"

    def _kill(self) -> None:
        self.killed = True
        self._process.kill()

    def close(self) -> None:
        """Kill the process and give back its pipes."""
        self.disarm()
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
