"""An LP that HiGHS keeps between solves: for column generation and for diving."""

import contextlib
import math
import time
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from rpopt.errors import InstanceError, SolverError
from rpopt.highs.linear import (
    FloatArray,
    LinearModel,
    bounds_arrays,
    column_arrays,
    float_array,
)
from rpopt.highs.process import (
    KILL_GRACE_S,
    Child,
    ChildGoneError,
    Termination,
    check_time_limit,
    payload,
    read_status,
)
from rpopt.records import int_array

START_LIMIT_S = 60.0
"""How long a handle may take to start, and a change of its columns to be taken in."""
_SOLUTION = ("objective", "x", "row_duals", "reduced_costs")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LpResult:
    """What one solve of a kept LP gave; arrays are None unless the status is optimal.

    Parameters
    ----------
    status
        Why the solve ended.
    objective
        Objective of x, in the model's own sense.
    x
        Shape (C,), columns added later included, with HiGHS' tolerances: not rounded.
    row_duals
        Shape (M,): change of the objective per unit of a row's active bound.
    reduced_costs
        Shape (C,): cost minus the rows' duals times the column.
    iterations
        Simplex iterations.
    runtime_s
        Seconds as seen by the caller.
    """

    status: Termination
    objective: float | None
    x: FloatArray | None
    row_duals: FloatArray | None
    reduced_costs: FloatArray | None
    iterations: int
    runtime_s: float


class LpHandle:
    """An LP in a child process of its own, re-solved from its last basis.

    Adding columns is followed by the primal simplex, changing bounds by the dual
    simplex, since that is what the kept basis stays feasible for. The child ends with
    the `with` block, with the handle, or with this process.

    Parameters
    ----------
    model
        The LP to start from; see `LinearModel.relaxed` for models with integers.
    interior_point
        Whether to solve from scratch by the interior-point method instead, and to stop
        at its solution, which is no vertex.
    deadline_s
        When its process is ended at the latest, within 1 s, on `time.monotonic`.

    Raises
    ------
    InstanceError
        For a model with integer columns.
    SolverError
        When HiGHS cannot be started or refuses the model.
    """

    def __init__(
        self,
        model: LinearModel,
        *,
        interior_point: bool = False,
        deadline_s: float = math.inf,
    ) -> None:
        if model.integrality.any():
            raise InstanceError(
                f"{int(model.integrality.sum())} columns are integer; an LP handle"
                " takes none: pass model.relaxed()"
            )
        self.num_col, self.num_row = model.num_col, model.num_row
        self._sign = -1.0 if model.maximize else 1.0
        self._deadline_s = deadline_s
        try:
            self._child = Child(self._kill_at_s(START_LIMIT_S))
        except ChildGoneError as error:
            raise SolverError(f"{error}; the LP handle did not start") from error
        self._close = weakref.finalize(self, self._child.close)
        options = {"solver": "simplex"}
        if interior_point:
            options = {"solver": "ipm", "run_crossover": "off"}
        request = {"model": payload(model), "options": options}
        self._ask("lp_load", request)

    def __enter__(self) -> Self:
        """Return the handle itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process behind the handle."""
        self.close()

    def close(self) -> None:
        """End the process behind the handle; closing twice does nothing."""
        self._close()

    def add_columns(
        self,
        costs: npt.ArrayLike,
        starts: npt.ArrayLike,
        rows: npt.ArrayLike,
        values: npt.ArrayLike,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
    ) -> None:
        """Append N columns.

        Parameters
        ----------
        costs, lower, upper
            Shape (N,): cost and bounds of each new column.
        starts, rows, values
            The new columns as in `LinearModel`; shapes (N+1,), (Z,), (Z,).
        """
        cost = float_array(costs, "costs")
        num = len(cost)
        low, high = bounds_arrays(lower, upper, num, "column")
        starts, rows, coefs = column_arrays(starts, rows, values, num, self.num_row)
        if num:
            new = {"cost": self._sign * cost, "lower": low, "upper": high}
            matrix = {"starts": starts, "rows": rows, "coefs": coefs}
            self._ask("lp_add_columns", {**new, **matrix})
            self.num_col += num

    def set_bounds(
        self, cols: npt.ArrayLike, lower: npt.ArrayLike, upper: npt.ArrayLike
    ) -> None:
        """Change the bounds of some columns, for instance to fix or to free them.

        Parameters
        ----------
        cols
            Shape (N,): distinct column numbers.
        lower, upper
            Shape (N,): their new bounds.
        """
        col_N = int_array(cols, name="cols", ndim=1, minimum=0)
        low, high = bounds_arrays(lower, upper, len(col_N), "column")
        if len(set(col_N.tolist())) < len(col_N) or (col_N >= self.num_col).any():
            raise InstanceError(
                f"cols must be distinct numbers below {self.num_col}, got {col_N}"
            )
        if len(col_N):
            self._ask("lp_set_bounds", col_N, low, high)

    def solve(self, time_limit_s: float) -> LpResult:
        """Solve from the kept basis.

        A solve that had to be killed returns `TIME_LIMIT_KILLED` and ends the handle.

        Parameters
        ----------
        time_limit_s
            Seconds; the call returns within this and 2 s.

        Raises
        ------
        SolverError
            When HiGHS fails twice, from the basis and from scratch.
        """
        check_time_limit(time_limit_s)
        begin_s = time.monotonic()
        try:
            answer = self._ask("lp_solve", begin_s + time_limit_s, limit_s=time_limit_s)
        except ChildGoneError:
            return self._result(Termination.TIME_LIMIT_KILLED, {}, begin_s)
        status = read_status(answer, answer["log"])
        if status is Termination.FAILED:
            raise SolverError(
                f"HiGHS failed on an LP of {self.num_row} rows and {self.num_col}"
                f" columns ({answer['run']}, {answer['status']}); its log ends:\n"
                f"{answer['log']}"
            )
        return self._result(status, answer, begin_s)

    def _result(
        self, status: Termination, answer: dict[str, Any], begin_s: float
    ) -> LpResult:
        found: dict[str, Any] = dict.fromkeys(_SOLUTION)
        if status is Termination.OPTIMAL:
            found = {name: answer[name] for name in _SOLUTION}
            if any(value is None for value in found.values()):
                raise SolverError("HiGHS calls an LP optimal without solution or duals")
            for name in ("objective", "row_duals", "reduced_costs"):
                found[name] = self._sign * found[name] + 0.0
        return LpResult(
            status=status,
            iterations=answer.get("iterations", 0),
            runtime_s=time.monotonic() - begin_s,
            **found,
        )

    def _kill_at_s(self, limit_s: float) -> float:
        return min(time.monotonic() + limit_s, self._deadline_s) + KILL_GRACE_S

    def _ask(self, name: str, *arguments: Any, limit_s: float = START_LIMIT_S) -> Any:
        """Send a request and return the answer; only `lp_solve` may be killed."""
        if not self._close.alive:
            raise SolverError("this LP handle is closed; make a new one")
        self._child.arm(self._kill_at_s(limit_s))
        try:
            self._child.send(name, *arguments)
            kind, content = self._child.receive()
            self._child.disarm()
        except ChildGoneError as error:
            self.close()
            if error.killed and name == "lp_solve":
                raise
            raise SolverError(f"{error}; make a new LP handle") from error
        except BaseException:  # an interrupt leaves an answer on its way
            with contextlib.suppress(Exception):
                self.close()
            raise
        if kind == "error":
            self.close()
            raise SolverError(f"the LP handle failed at {name}:\n{content}")
        return content
