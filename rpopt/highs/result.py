"""What a run of HiGHS gives back, and what its claimed bound is worth.

Axis letters: C columns, M rows.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rpopt.highs.linear import FloatArray, LinearModel
from rpopt.highs.process import Termination

BOUND_TOLERANCE = 1e-4
"""What is taken off a bound, plus 1e-9 of its size, before it is rounded."""


class StartStatus(StrEnum):
    """What became of a start."""

    NONE = "none"
    ACCEPTED = "accepted"  # feasible by our check (once completed), and HiGHS said so
    REJECTED = "rejected"  # infeasible, by our check or by HiGHS'
    UNCONFIRMED = "unconfirmed"  # feasible by our check; HiGHS did not say in time


class Progress(NamedTuple):
    """The claimed bounds of the optimum at one time, in the model's own sense."""

    seconds_s: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolverResult:
    """What a run gave; arrays are read-only, numbers are in the model's own sense.

    Parameters
    ----------
    termination
        Why HiGHS ended, literally. "optimal" is its claim: compare the numbers.
    x
        Shape (C,): the best point that passed our check, integer columns whole. It is
        HiGHS' solution, or an earlier one or the start when that fails or is worse.
    objective
        Recomputed from x; an int when all its terms are.
    raw_objective, raw_bound
        As HiGHS reported them; None where there is none.
    bound
        The raw bound, for an integral objective less its tolerance and then rounded:
        a lower bound, or an upper one when maximising. None where none is known.
    row_duals, reduced_costs
        Shapes (M,) and (C,), for an LP solved to optimality: change of the objective
        per unit of the active bound.
    start_status, start_note
        What became of the start, and why.
    rejection
        Why a solution of HiGHS was not accepted, or "".
    failure
        What failed, in one paragraph, or "". `retried` says that a first run failed.
    bound_history
        Bounds claimed while it ran, oldest first.
    runtime_s
        Seconds as seen by the caller.
    num_nodes
        Nodes of the search tree.
    presolve
        Whether the last run used presolve.
    log_tail
        Last lines of HiGHS' log.
    model_digest, versions
        What was solved, and by what.
    """

    termination: Termination
    x: FloatArray | None
    objective: int | float | None
    raw_objective: float | None
    raw_bound: float | None
    bound: int | float | None
    row_duals: FloatArray | None
    reduced_costs: FloatArray | None
    start_status: StartStatus
    start_note: str
    rejection: str
    failure: str
    bound_history: tuple[Progress, ...]
    runtime_s: float
    num_nodes: int
    presolve: bool
    retried: bool
    log_tail: str
    model_digest: str
    versions: tuple[tuple[str, str], ...]

    @property
    def has_solution(self) -> bool:
        """Whether a point passed the check."""
        return self.x is not None


def safe_bound(model: LinearModel, raw: float | None) -> int | float | None:
    """Return what a claimed bound is worth: rounded after taking off a tolerance.

    Only an integral objective lets a bound be rounded. The tolerance is larger than
    the errors seen in claimed bounds (65.0000046 for 65), so that they round to 65.
    """
    if raw is None or not model.integral_objective:
        return raw
    slack = BOUND_TOLERANCE + 1e-9 * abs(raw)
    return math.floor(raw + slack) if model.maximize else math.ceil(raw - slack)
