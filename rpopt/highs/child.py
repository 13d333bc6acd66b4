"""The process in which HiGHS runs: started as a script, never imported.

It imports NumPy and highspy only, answers pickled requests from stdin on stdout, and
dies with its parent. HiGHS keeps one thread pool per process and fixes its size at the
first use, so every model of this process is solved with one thread.

Every model is a minimisation here; the parent turns maximisations around.
"""

import collections
import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

OPTIONS = {"threads": 1, "parallel": "off", "random_seed": 0, "log_to_console": False}
_FEASIBLE = 2  # HiGHS' code for a feasible primal or dual solution
_PATIENCE_S = 0.3  # for completing a rounded solution


class _Channel:
    """Messages to the parent; without a parent there is nothing left to do."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send one message, or end the process when nobody listens."""
        try:
            with self._lock:
                pickle.dump(message, self._stream, protocol=5)
                self._stream.flush()
        except OSError:
            os._exit(1)


class Server:
    """Answers requests; holds the one model that a persistent handle works on."""

    def __init__(self, highspy: Any, channel: _Channel) -> None:
        self.stop = threading.Event()
        self._hp = highspy
        self._channel = channel
        self._log: collections.deque[str] = collections.deque(maxlen=40)
        self._lp: Any = None
        self._primal_first = False
        self._last: tuple[float, float] | None = None

    # -------------------------------------------------------------- one whole solve

    def solve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Solve a model from scratch; progress is streamed while it runs."""
        highs = self._load(request["model"], request["options"])
        start = request["start"]
        if start is not None and len(start[0]) < highs.getNumCol():
            start = self._complete(highs, request, *start)
        if start is not None:
            solution = self._hp.HighsSolution()
            solution.col_value = start[1].tolist()
            solution.value_valid = True
            self._check(highs.setSolution(solution), "setSolution")
        self._listen(highs, is_mip=request["integer_cols"].size > 0)
        run = self._run(highs, request["deadline_s"])
        answer = self._answer(highs, run)
        if answer["x"] is not None and answer["status"] != "kUnbounded":
            answer["x"] = self._polish(highs, answer["x"], request)
        return answer

    def _load(self, model: dict[str, Any], options: dict[str, Any]) -> Any:
        hp = self._hp
        highs = hp.Highs()
        for name, value in {**OPTIONS, **options}.items():
            self._check(highs.setOptionValue(name, value), f"option {name}")
        lp = hp.HighsLp()
        lp.num_col_, lp.num_row_ = len(model["cost"]), len(model["row_lower"])
        lp.col_cost_, lp.offset_ = model["cost"], model["offset"]
        lp.col_lower_, lp.col_upper_ = model["col_lower"], model["col_upper"]
        lp.row_lower_, lp.row_upper_ = model["row_lower"], model["row_upper"]
        lp.a_matrix_.format_ = hp.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = model["starts"], model["rows"]
        lp.a_matrix_.value_ = model["coefs"]
        if model["integrality"].any():
            kinds = (hp.HighsVarType.kContinuous, hp.HighsVarType.kInteger)
            lp.integrality_ = [kinds[i] for i in model["integrality"].tolist()]
        self._check(highs.passModel(lp), "passModel")
        return highs

    def _listen(self, highs: Any, *, is_mip: bool) -> None:
        kinds = self._hp.cb.HighsCallbackType
        self._check(highs.setCallback(self._on_event, None), "setCallback")
        wanted = [kinds.kCallbackLogging, kinds.kCallbackSimplexInterrupt]
        if is_mip:
            wanted = [
                kinds.kCallbackLogging,
                kinds.kCallbackMipImprovingSolution,
                kinds.kCallbackMipInterrupt,
                kinds.kCallbackMipLogging,
            ]
        for kind in wanted:
            self._check(highs.startCallback(kind), f"startCallback {kind}")

    def _on_event(self, kind: Any, text: str, out: Any, into: Any, _: Any) -> None:
        kinds = self._hp.cb.HighsCallbackType
        if kind == kinds.kCallbackLogging:
            self._channel.send("log", text)
            return
        if kind == kinds.kCallbackMipImprovingSolution:
            self._channel.send("incumbent", out.mip_solution.copy())
        if kind != kinds.kCallbackSimplexInterrupt:
            bounds = (out.mip_dual_bound, out.mip_primal_bound)
            if bounds != self._last:
                self._last = bounds
                self._channel.send("progress", time.monotonic(), *bounds)
        if into is not None and self.stop.is_set():
            into.user_interrupt = True

    def _run(self, highs: Any, deadline_s: float) -> str:
        # The limit counts all the runs of an instance, not the next one.
        left_s = max(0.0, deadline_s - time.monotonic())
        limit_s = highs.getRunTime() + left_s
        self._check(highs.setOptionValue("time_limit", limit_s), "time_limit")
        return str(highs.run().name)

    def _answer(self, highs: Any, run: str) -> dict[str, Any]:
        info = highs.getInfo()
        solution = highs.getSolution()
        has_x = bool(info.valid) and info.primal_solution_status == _FEASIBLE
        has_dual = bool(solution.dual_valid) and info.dual_solution_status == _FEASIBLE
        read = self._array
        return {
            "run": run,
            "status": highs.getModelStatus().name,
            "valid": bool(info.valid),
            "objective": info.objective_function_value if has_x else None,
            "mip_bound": info.mip_dual_bound,
            "num_nodes": max(0, int(info.mip_node_count)),
            "iterations": max(0, int(info.simplex_iteration_count)),
            "x": read(solution.col_value) if has_x else None,
            "row_duals": read(solution.row_dual) if has_dual else None,
            "reduced_costs": read(solution.col_dual) if has_dual else None,
        }

    # ------------------------------------------------- solving with columns held fast

    def _complete(
        self, highs: Any, request: dict[str, Any], cols: Any, values: Any
    ) -> tuple[Any, Any] | None:
        """Fill a partial start by a small search with the given columns held fast.

        HiGHS could do this itself, but would report the bounds of the restricted model
        through the same callbacks as those of the whole.
        """
        now_s = time.monotonic()
        until_s = now_s + max(0.0, 0.2 * (request["deadline_s"] - now_s))
        x = self._fixed(highs, request, cols, values, until_s)
        self._channel.send("start", x)
        return None if x is None else (range(len(x)), x)

    def _polish(self, highs: Any, x: Any, request: dict[str, Any]) -> Any:
        """Round integer columns and solve for the continuous ones again.

        Rounding alone moves rows by coefficient times rounding; and the continuous
        columns of a heuristic's solution need not be the best ones.
        """
        cols = request["integer_cols"]
        if not 0 < cols.size < len(x):
            return x
        whole = x[cols].round()
        self._channel.send("incumbent", x)
        until_s = time.monotonic() + _PATIENCE_S
        better = self._fixed(highs, request, cols, whole, until_s)
        return x if better is None else better

    def _fixed(
        self,
        highs: Any,
        request: dict[str, Any],
        cols: Any,
        values: Any,
        until_s: float,
    ) -> Any:
        model, cols = request["model"], cols.astype("int32")
        self._check(highs.setCallback(None, None), "setCallback")
        nodes = highs.getOptionValue("mip_max_nodes")[1]
        self._check(highs.setOptionValue("mip_max_nodes", min(500, nodes)), "nodes")
        change = highs.changeColsBounds
        self._check(change(len(cols), cols, values, values), "changeColsBounds")
        answer = self._answer(highs, self._run(highs, until_s))
        lower, upper = model["col_lower"][cols], model["col_upper"][cols]
        self._check(change(len(cols), cols, lower, upper), "changeColsBounds")
        self._check(highs.setOptionValue("mip_max_nodes", nodes), "nodes")
        self._check(highs.clearSolver(), "clearSolver")
        return answer["x"]

    # --------------------------------------------------------------- a persistent LP

    def lp_load(self, request: dict[str, Any]) -> None:
        """Hold an LP."""
        self._lp = self._load(request["model"], request["options"])
        self._check(self._lp.setCallback(self._keep_log, None), "setCallback")
        logging = self._hp.cb.HighsCallbackType.kCallbackLogging
        self._check(self._lp.startCallback(logging), "startCallback")

    def _keep_log(self, kind: Any, text: str, out: Any, into: Any, _: Any) -> None:
        self._log.append(text)

    def lp_add_columns(self, new: dict[str, Any]) -> None:
        """Append columns; the basis stays primal feasible."""
        num, coefs = len(new["cost"]), new["coefs"]
        status = self._lp.addCols(
            num,
            new["cost"],
            new["lower"],
            new["upper"],
            len(coefs),
            new["starts"][:-1].astype("int32"),
            new["rows"].astype("int32"),
            coefs,
        )
        self._check(status, "addCols")
        self._primal_first = True

    def lp_set_bounds(self, cols: Any, lower: Any, upper: Any) -> None:
        """Change bounds of columns; the basis stays dual feasible."""
        change = self._lp.changeColsBounds
        status = change(len(cols), cols.astype("int32"), lower, upper)
        self._check(status, "changeColsBounds")
        self._primal_first = False

    def lp_solve(self, deadline_s: float) -> dict[str, Any]:
        """Solve from the kept basis; a failed run is repeated once from scratch."""
        highs = self._lp
        strategy = 4 if self._primal_first else 1  # primal simplex, dual simplex
        self._check(highs.setOptionValue("simplex_strategy", strategy), "strategy")
        run = self._run(highs, deadline_s)
        answer = self._answer(highs, run)
        if run == "kError" or answer["status"] in (
            "kUnknown",
            "kSolveError",
            "kNotset",
        ):
            self._check(highs.clearSolver(), "clearSolver")
            self._check(highs.setOptionValue("simplex_strategy", 1), "strategy")
            answer = self._answer(highs, self._run(highs, deadline_s))
        self._primal_first = True
        answer["log"] = "".join(self._log)
        return answer

    # ------------------------------------------------------------------------ helpers

    def _check(self, status: Any, what: str) -> None:
        if status != self._hp.HighsStatus.kOk:
            raise RuntimeError(f"HiGHS answered {status.name} to {what}")

    @staticmethod
    def _array(values: Any) -> Any:
        import numpy as np

        return np.array(values, dtype=np.float64)


def _watch_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _read(
    stream: BinaryIO, requests: "queue.SimpleQueue[Any]", stop: threading.Event
) -> None:
    try:
        while True:
            request = pickle.load(stream)
            if request[0] == "stop":
                stop.set()
            else:
                requests.put(request)
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)  # the parent closed the pipe or is gone


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_watch_parent, daemon=True).start()
    channel = _Channel(os.fdopen(os.dup(1), "wb"))
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)  # HiGHS greets on stdout
    try:
        sys.path[:] = pickle.load(sys.stdin.buffer)
        highspy: Any = importlib.import_module("highspy")
    except (ImportError, EOFError):
        channel.send("error", traceback.format_exc())
        return
    server = Server(highspy, channel)
    channel.send("hello", highspy.Highs().version())
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    reading = (sys.stdin.buffer, requests, server.stop)
    threading.Thread(target=_read, args=reading, daemon=True).start()
    while True:
        name, *args = requests.get()
        try:
            channel.send("answer", getattr(server, name)(*args))
        except Exception:
            channel.send("error", traceback.format_exc())


if __name__ == "__main__":
    main()
