"""Solving one model from scratch, within a hard time limit.

What HiGHS says is a claim: solutions are rounded and evaluated again before they are
reported, and a bound is read only together with the status it came with.

Axis letters: C columns, M rows.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError, SolverError
from rpopt.highs.linear import FloatArray, LinearModel, first_violation, rounded
from rpopt.highs.process import (
    KILL_GRACE_S,
    Child,
    ChildGoneError,
    Termination,
    check_time_limit,
    payload,
    read_status,
)
from rpopt.highs.result import Progress, SolverResult, StartStatus, safe_bound

_INTEGRAL_ABS_GAP = (
    0.99  # 1 less than which is well above BOUND_TOLERANCE: still closes
)
_WITH_BOUND = (
    Termination.OPTIMAL,
    Termination.TIME_LIMIT,
    Termination.NODE_LIMIT,
    Termination.ITERATION_LIMIT,
    Termination.OBJECTIVE_BOUND,
    Termination.OBJECTIVE_TARGET,
    Termination.INTERRUPTED,
    Termination.MEMORY_LIMIT,
)


@dataclass(slots=True)
class _Run:
    """Everything learnt about one `solve` call so far."""

    model: LinearModel
    begin_s: float
    deadline_s: float
    start: FloatArray | None = None  # as asked for, NaN where open
    start_status: StartStatus = StartStatus.NONE
    start_note: str = ""
    points: list[FloatArray] = field(default_factory=list)  # starts, then incumbents
    num_starts: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    history: list[Progress] = field(default_factory=list)
    dual: float = -math.inf  # of the current attempt, for minimising
    log: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    failure: str = ""
    version: str = ""


def solve(
    model: LinearModel,
    *,
    time_limit_s: float,
    start: npt.ArrayLike | None = None,
    node_limit: int | None = None,
    presolve: bool = True,
    on_progress: Callable[[Progress], bool | None] | None = None,
) -> SolverResult:
    """Solve a linear or mixed-integer model within a hard time limit.

    A run that fails is repeated once without presolve in the time that is left; if that
    fails too, the result is labelled `FAILED`, holds the best point known and no bound.

    Parameters
    ----------
    model
        What to solve.
    time_limit_s
        Seconds, the start of the child included; the call returns within this and 2 s.
    start
        Shape (C,): a point to start from, NaN where a value is left open. Only for
        models with integer columns.
    node_limit
        Limit on search nodes: the deterministic limit.
    presolve
        Whether to begin with presolve; large network models can lose minutes in it.
    on_progress
        Called when the bounds change; a true answer asks HiGHS to stop.

    Raises
    ------
    InstanceError
        For a limit or a start that makes no sense.
    SolverError
        When HiGHS cannot be started, contradicts a point that passed our check, or
        answers with a status or bound that cannot be read.
    """
    begin_s = time.monotonic()
    check_time_limit(time_limit_s)
    if node_limit is not None and node_limit < 0:
        raise InstanceError(f"node_limit = {node_limit}; it must be at least 0")
    run = _Run(model, begin_s, begin_s + time_limit_s)
    if start is not None:
        _read_start(run, start)
    attempts, termination = 0, Termination.TIME_LIMIT
    while attempts < 2 and time_limit_s > 0:
        presolve = presolve and attempts == 0
        termination = _attempt(run, _options(model, node_limit, presolve), on_progress)
        attempts += 1
        if termination is not Termination.FAILED or time.monotonic() > run.deadline_s:
            break
    return _result(run, termination, presolve=presolve, retried=attempts == 2)


def _options(
    model: LinearModel, node_limit: int | None, presolve: bool
) -> dict[str, float | int | str]:
    """Return the options of HiGHS.

    Without an absolute gap the search goes on until nothing is left; an integral
    objective may stop as soon as rounding the bound closes the gap.
    """
    return {
        "mip_rel_gap": 0.0,
        "mip_abs_gap": _INTEGRAL_ABS_GAP if model.integral_objective else 0.0,
        "mip_feasibility_tolerance": _integrality_tolerance(model),
        "mip_max_nodes": min(
            2**31 - 1, 2**31 - 1 if node_limit is None else node_limit
        ),
        "presolve": "choose" if presolve else "off",
    }


def _integrality_tolerance(model: LinearModel) -> float:
    """Return how far from a whole number an integer column may be in HiGHS.

    A capacity of 10^7 makes 10 tokens of room out of an "almost zero" 10^-6, so large
    coefficients need a smaller tolerance than HiGHS' default.
    """
    col_Z = np.repeat(np.arange(model.num_col), np.diff(model.starts))
    sizes = np.abs(model.coefs[model.integrality[col_Z]])
    largest = float(sizes.max(initial=1.0))
    return min(1e-6, max(1e-10, 0.1 / largest))


# ------------------------------------------------------------------------- one attempt


def _read_start(run: _Run, start: npt.ArrayLike) -> None:
    """Check a start; a full feasible one becomes the first point known."""
    model, values = run.model, np.array(start, dtype=np.float64)
    if values.shape != (model.num_col,) or np.isinf(values).any():
        raise InstanceError(
            f"the start has shape {values.shape} or infinite entries; it needs"
            f" ({model.num_col},) finite values, NaN where open"
        )
    if not model.integrality.any():
        raise InstanceError("a start is for models with integer columns; leave it out")
    given = ~np.isnan(values)
    filled = np.where(given, values, np.clip(0.0, model.col_lower, model.col_upper))
    point = rounded(model, filled)
    moved = given & (np.abs(point - filled) > 1e-6)
    outside = given & ((point < model.col_lower) | (point > model.col_upper))
    reason: str | None = None
    if (moved | outside).any():
        j = int((moved | outside).argmax())
        reason = f"column {j} = {values[j]} is not whole or out of bounds"
    elif given.all():
        reason = first_violation(model, point)
        if reason is None:
            run.points.append(point)
            run.num_starts = 1
    if reason is not None:
        run.start_status, run.start_note = StartStatus.REJECTED, reason
        return
    run.start_status = StartStatus.UNCONFIRMED
    run.start = np.where(given, point, np.nan)


def _attempt(
    run: _Run,
    options: dict[str, float | int | str],
    on_progress: Callable[[Progress], bool | None] | None,
) -> Termination:
    """Run HiGHS once and take in everything it says."""
    run.answer, run.dual = {}, -math.inf
    start = None
    if run.start is not None:
        cols = np.flatnonzero(~np.isnan(run.start))
        start = (cols, run.start[cols]) if len(cols) else None
    request = {
        "model": payload(run.model),
        "options": options,
        "start": start,
        "integer_cols": np.flatnonzero(run.model.integrality),
        "deadline_s": run.deadline_s,
    }
    try:
        with Child(run.deadline_s + KILL_GRACE_S) as child:
            run.version = child.version
            child.send("solve", request)
            while (message := child.receive())[0] not in ("answer", "error"):
                if _take(run, message, on_progress):
                    child.send("stop")
    except ChildGoneError as gone:
        run.failure = str(gone)
        return Termination.TIME_LIMIT_KILLED if gone.killed else Termination.FAILED
    if message[0] == "error":
        run.failure = message[1].strip()
        return Termination.FAILED
    run.answer = message[1]
    termination = read_status(run.answer, "".join(run.log))
    if termination is Termination.FAILED:
        run.failure = f"HiGHS ended with {run.answer['run']}, {run.answer['status']}"
    elif (reason := _false_objective(run)) is not None:
        run.answer, run.failure = {}, reason
        return Termination.FAILED
    return termination


def _false_objective(run: _Run) -> str | None:
    """Say how the claimed objective differs from that of HiGHS' own feasible point.

    Seen with presolve and a correct start: the search then ends at a false incumbent,
    and the bound with it.
    """
    x, claimed = run.answer.get("x"), run.answer.get("objective")
    if x is None or claimed is None or not run.model.integrality.any():
        return None
    point = rounded(run.model, x)
    if first_violation(run.model, point) is not None:
        return None
    value = float(run.model.objective(point))
    sign = -1.0 if run.model.maximize else 1.0
    if abs(sign * claimed - value) <= 1e-4 + 1e-6 * abs(value):
        return None
    return f"HiGHS claims the objective {sign * claimed}; its point has {value}"


def _take(
    run: _Run,
    message: tuple[Any, ...],
    on_progress: Callable[[Progress], bool | None] | None,
) -> bool:
    """Take in one streamed message; return whether HiGHS shall stop."""
    kind, *content = message
    if kind == "log":
        _take_log(run, content[0])
    elif kind == "incumbent":
        run.points[run.num_starts :] = [content[0]]
    elif kind == "start":
        _take_completed(run, content[0])
    elif kind == "progress":
        at_s, dual, primal = content
        if math.isnan(dual) or math.isnan(primal):
            raise SolverError("HiGHS streamed a bound that is not a number")
        run.dual = max(run.dual, dual)
        low, high = (-primal, -dual) if run.model.maximize else (dual, primal)
        ends = (None if math.isinf(v) else v + 0.0 for v in (low, high))
        run.history.append(Progress(at_s - run.begin_s, *ends))
        return bool(on_progress is not None and on_progress(run.history[-1]))
    return False


def _take_log(run: _Run, text: str) -> None:
    run.log.append(text)
    if run.start_status is StartStatus.UNCONFIRMED and (
        "MIP start solution is feasible" in text
        or ("Assessing feasibility of MIP solution" in text and ": feasible" in text)
    ):
        run.start_status = StartStatus.ACCEPTED


def _take_completed(run: _Run, x: FloatArray | None) -> None:
    """Check what a partial start was completed to."""
    reason: str | None = "no feasible completion was found"
    if x is not None:
        point = rounded(run.model, x)
        reason = first_violation(run.model, point)
        if reason is None:
            run.points[: run.num_starts] = [point]
            run.num_starts = 1
            return
    run.start_status, run.start_note = StartStatus.REJECTED, str(reason)


# -------------------------------------------------------------------------- the result


def _result(
    run: _Run, termination: Termination, *, presolve: bool, retried: bool
) -> SolverResult:
    model, answer = run.model, run.answer
    x, objective, rejection = _best_point(run)
    raw_bound = _raw_bound(run, termination)
    bound = safe_bound(model, raw_bound)
    _require_consistent(run, termination, objective, bound)
    sign = -1.0 if model.maximize else 1.0
    raw_objective = answer.get("objective")
    is_lp = not model.integrality.any()
    duals: dict[str, FloatArray | None] = {"row_duals": None, "reduced_costs": None}
    if is_lp and termination is Termination.OPTIMAL:
        duals = {name: _frozen(sign * answer[name] + 0.0) for name in duals}
    return SolverResult(
        termination=termination,
        x=x,
        objective=objective,
        raw_objective=None if raw_objective is None else sign * raw_objective + 0.0,
        raw_bound=raw_bound,
        bound=bound,
        start_status=run.start_status,
        start_note=run.start_note,
        rejection=rejection,
        failure=run.failure,
        bound_history=tuple(run.history),
        runtime_s=time.monotonic() - run.begin_s,
        num_nodes=answer.get("num_nodes", 0),
        presolve=presolve,
        retried=retried,
        log_tail="".join(run.log),
        model_digest=model.digest,
        versions=(("highs", run.version),) if run.version else (),
        **duals,
    )


def _best_point(run: _Run) -> tuple[FloatArray | None, int | float | None, str]:
    """Return the best known point that passes our check, and why HiGHS' did not."""
    model = run.model
    raw: list[FloatArray] = list(run.points)
    last = run.answer.get("x")
    if last is not None:
        raw.append(last)
    best: tuple[FloatArray | None, int | float | None] = (None, None)
    rejection = ""
    for candidate in reversed(raw):
        point = rounded(model, candidate)
        reason = first_violation(model, point)
        if reason is not None:
            rejection = rejection or reason
            continue
        value = model.objective(point)
        better = best[1] is None or (
            value > best[1] if model.maximize else value < best[1]
        )
        if better:
            best = (_frozen(point), value)
    return *best, rejection


def _raw_bound(run: _Run, termination: Termination) -> float | None:
    """Read the bound together with the status; only some statuses come with one."""
    answer, is_mip = run.answer, bool(run.model.integrality.any())
    if termination is Termination.TIME_LIMIT_KILLED:
        raw = run.dual
    elif termination not in _WITH_BOUND or not answer:
        return None
    elif is_mip:
        raw = answer["mip_bound"]
    elif termination is Termination.OPTIMAL:
        raw = answer["objective"]
    else:
        return None
    if not (answer.get("valid", True) and raw is not None and not math.isnan(raw)):
        raise SolverError(f"the bound of a {termination} run cannot be read: {raw}")
    if math.isinf(raw):
        if termination is Termination.OPTIMAL:
            raise SolverError(f"HiGHS calls a model optimal with the bound {raw}")
        return None
    return (-raw if run.model.maximize else raw) + 0.0


def _require_consistent(
    run: _Run,
    termination: Termination,
    objective: int | float | None,
    bound: int | float | None,
) -> None:
    """Raise when HiGHS contradicts a point that passed our check."""
    if objective is None:
        return
    said = ""
    if termination is Termination.INFEASIBLE:
        said = "calls the model infeasible"
    elif bound is not None:
        excess = objective - bound if run.model.maximize else bound - objective
        if excess > 1e-6 * max(1.0, abs(objective)):
            said = (
                f"claims the bound {bound} (integral: {run.model.integral_objective})"
            )
    if said:
        raise SolverError(
            f"HiGHS {said}, but a checked point has objective {objective}; one of the"
            " two, or the promise of an integral objective, is wrong; last log lines:\n"
            + "".join(run.log)
        )


def _frozen(array: FloatArray) -> FloatArray:
    array.setflags(write=False)
    return array
