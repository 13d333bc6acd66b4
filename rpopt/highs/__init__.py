"""The one door to HiGHS: models in, statuses, solutions and bounds out.

HiGHS runs in child processes (`rpopt.highs.child`): it has been seen to ignore its time
limit inside presolve for minutes, and a child can be killed. This process never imports
highspy, and Pyomo only inside `compile_pyomo`. Every run uses one thread, one seed and
no relative gap, so the same model gives the same search.
"""

from rpopt.highs.driver import solve
from rpopt.highs.linear import LinearModel, first_violation, rounded
from rpopt.highs.lp import LpHandle, LpResult
from rpopt.highs.mps import archive_mps
from rpopt.highs.process import Termination
from rpopt.highs.pyomo_arrays import compile_pyomo, load_pyomo, start_of
from rpopt.highs.result import Progress, SolverResult, StartStatus, safe_bound

__all__ = [
    "LinearModel",
    "LpHandle",
    "LpResult",
    "Progress",
    "SolverResult",
    "StartStatus",
    "Termination",
    "archive_mps",
    "compile_pyomo",
    "first_violation",
    "load_pyomo",
    "rounded",
    "safe_bound",
    "solve",
    "start_of",
]
