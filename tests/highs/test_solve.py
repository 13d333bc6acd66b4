"""One solve: statuses, solutions, bounds, starts."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import highspy
import numpy as np
import pytest

from rpopt.errors import InstanceError, SolverError
from rpopt.highs import (
    Progress,
    StartStatus,
    Termination,
    driver,
    process,
    safe_bound,
    solve,
)
from tests.highs.models import dense, knapsack, makespan, packing, placed

ROOT = Path(__file__).resolve().parents[2]
INF = np.inf


def test_importing_loads_neither_highspy_nor_pyomo_nor_scipy() -> None:
    script = (
        "import sys, rpopt.highs;"
        "print([m for m in ('highspy', 'pyomo', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_every_status_of_highs_has_a_termination() -> None:
    assert set(process.TERMINATIONS) == set(highspy.HighsModelStatus.__members__)


def test_an_unknown_status_is_an_error() -> None:
    with pytest.raises(SolverError, match="kSomethingNew"):
        process.read_status({"run": "kOk", "status": "kSomethingNew"})


def test_a_failed_run_counts_whatever_its_status() -> None:
    answer = {"run": "kError", "status": "kOptimal"}
    assert process.read_status(answer) is Termination.FAILED


def test_the_wrong_version_is_refused() -> None:
    with pytest.raises(SolverError, match=r"1\.14\.0.*install another"):
        process.check_version("1.14.0")
    process.check_version("1.16.0")


def test_an_optimal_milp() -> None:
    weights = [6, 5, 5, 4, 4, 3, 3]  # 30 in cells of 10
    result = solve(packing(weights, 10, 5), time_limit_s=20)
    assert result.termination is Termination.OPTIMAL
    assert (result.objective, result.bound, result.raw_objective) == (3, 3, 3.0)
    assert isinstance(result.objective, int)
    assert isinstance(result.bound, int)
    assert result.x is not None
    assert not result.x.flags.writeable
    assert result.start_status is StartStatus.NONE
    assert result.row_duals is None
    assert result.presolve
    assert not result.retried
    assert result.versions == (("highs", highspy.Highs().version()),)
    assert result.model_digest == packing(weights, 10, 5).digest
    assert "Dual bound" in result.log_tail


def test_an_optimal_lp_has_duals() -> None:
    # max 3x + 2y + 7: x + y <= 4, x + 3y <= 9, x <= 3
    model = dense(
        [3, 2],
        [[1, 1], [1, 3]],
        [-INF, -INF],
        [4, 9],
        upper=[3, INF],
        maximize=True,
        offset=7,
    )
    result = solve(model, time_limit_s=20)
    assert result.termination is Termination.OPTIMAL
    assert result.x is not None
    assert result.row_duals is not None
    assert result.reduced_costs is not None
    assert result.x == pytest.approx([3, 1])
    assert result.objective == pytest.approx(18)
    assert result.raw_bound == pytest.approx(18)
    assert result.row_duals == pytest.approx([2, 0])
    assert result.reduced_costs == pytest.approx([1, 0])


def test_maximising_with_an_offset() -> None:
    model = dataclasses.replace(knapsack(12), offset=1000)
    seen: list[Progress] = []
    result = solve(model, time_limit_s=20, on_progress=seen.append)
    assert result.termination is Termination.OPTIMAL
    assert result.objective == result.bound == result.raw_objective
    assert result.x is not None
    assert result.objective == model.col_cost @ result.x + 1000
    assert result.bound_history == tuple(seen)
    last = seen[-1]
    assert last.lower == result.objective
    assert last.upper is not None
    assert last.upper >= last.lower
    times = [p.seconds_s for p in seen]
    assert times == sorted(times)
    assert times[-1] <= result.runtime_s


@pytest.mark.parametrize("integer", [True, False])
def test_infeasible(integer: bool) -> None:
    model = dense([1, 1], [[2, 2]], [5], [7], upper=1, integer=integer)
    result = solve(model, time_limit_s=20)
    assert result.termination is Termination.INFEASIBLE
    assert not result.has_solution
    assert result.bound is result.raw_bound is result.objective is None


def test_presolve_can_be_left_out() -> None:
    result = solve(packing([6, 5, 5, 4], 10, 3), time_limit_s=20, presolve=False)
    assert (result.objective, result.bound) == (2, 2)
    assert not result.presolve
    assert not result.retried


def test_infeasible_by_integrality() -> None:
    model = dense([1, 1], [[2, 2]], [3], [3], upper=10, integer=True)
    assert solve(model, time_limit_s=20).termination is Termination.INFEASIBLE


@pytest.mark.parametrize("integer", [True, False])
def test_unbounded(integer: bool) -> None:
    result = solve(
        dense([-1, -1], [[1, -1]], [-1], [1], integer=integer), time_limit_s=20
    )
    assert result.termination in (
        Termination.UNBOUNDED,
        Termination.UNBOUNDED_OR_INFEASIBLE,
    )
    assert result.bound is result.raw_bound is None


def test_a_node_limit_is_deterministic() -> None:
    first, second = (
        solve(knapsack(), time_limit_s=60, node_limit=20) for _ in range(2)
    )
    assert first.termination is Termination.NODE_LIMIT
    assert first.has_solution
    assert first.bound is not None
    assert first.objective is not None
    assert first.bound > first.objective
    assert first.num_nodes >= 20
    assert np.array_equal(first.x, second.x)
    assert (first.raw_bound, first.num_nodes) == (second.raw_bound, second.num_nodes)


def test_a_time_limit() -> None:
    result = solve(knapsack(80), time_limit_s=1.0)
    assert result.termination in (
        Termination.TIME_LIMIT,
        Termination.TIME_LIMIT_KILLED,
    )
    assert result.runtime_s < 3


def test_a_time_limit_of_zero_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Child", None)
    result = solve(knapsack(), time_limit_s=0)
    assert result.termination is Termination.TIME_LIMIT
    assert result.bound is result.raw_bound is None
    assert not result.has_solution
    started = solve(knapsack(), time_limit_s=0, start=np.zeros(40))
    assert started.objective == 0
    assert started.start_status is StartStatus.UNCONFIRMED


def test_stopping_from_the_progress_callback() -> None:
    result = solve(knapsack(80), time_limit_s=60, on_progress=lambda _: True)
    assert result.termination is Termination.INTERRUPTED
    assert result.runtime_s < 30


@pytest.mark.parametrize("limit", [-1, math.nan, math.inf])
def test_a_senseless_time_limit_is_refused(limit: float) -> None:
    with pytest.raises(InstanceError, match="time_limit_s"):
        solve(knapsack(), time_limit_s=limit)


# ------------------------------------------------------------------ tolerances


def big_capacity() -> tuple[list[int], int]:
    """Two items that overflow a cell by 3 of 10,000,000 tokens, and a small one."""
    return [5_000_000, 5_000_003, 2], 10_000_000


def test_the_integrality_tolerance_does_not_leak_into_capacities() -> None:
    weights, cap = big_capacity()
    result = solve(packing(weights, cap, 3), time_limit_s=20)
    assert (result.objective, result.bound, result.rejection) == (2, 2, "")


def test_a_solution_that_breaks_a_row_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_integrality_tolerance", lambda _: 1e-6)
    weights, cap = big_capacity()
    result = solve(packing(weights, cap, 3), time_limit_s=20)
    assert result.termination is Termination.OPTIMAL
    assert not result.has_solution
    assert "row r" in result.rejection
    assert result.raw_objective == pytest.approx(1, abs=1e-5)
    assert result.bound == 1  # a bare ceil of 1.0000005 would say 2


def test_a_rejected_solution_falls_back_to_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_integrality_tolerance", lambda _: 1e-6)
    weights, cap = big_capacity()
    start = placed(weights, 3, [0, 1, 1])
    result = solve(packing(weights, cap, 3), time_limit_s=20, start=start)
    assert result.objective == 2
    assert result.rejection


def test_continuous_columns_are_solved_again_after_rounding() -> None:
    loads = [700_001, 600_007, 500_003, 400_009, 300_007, 200_003]
    result = solve(makespan(loads, 2), time_limit_s=30)
    best = min(
        max(part, sum(loads) - part)
        for mask in range(64)
        for part in [sum(v for i, v in enumerate(loads) if mask >> i & 1)]
    )
    assert result.objective == pytest.approx(best, abs=1e-6)
    assert result.bound == best


@pytest.mark.parametrize(
    ("raw", "minimum", "maximum"),
    [
        (75.00000000000001, 75, 75),
        (125000.00000000004, 125000, 125000),
        (65.0000046, 65, 65),
        (64.9999954, 65, 65),
        (64.5, 65, 64),
        (0.0, 0, 0),
    ],
)
def test_safe_bounds(raw: float, minimum: int, maximum: int) -> None:
    model = packing([1], 1, 1)
    assert safe_bound(model, raw) == minimum
    assert safe_bound(dataclasses.replace(model, maximize=True), raw) == maximum
    assert safe_bound(dataclasses.replace(model, integral_objective=False), raw) == raw
    assert safe_bound(model, None) is None


# ---------------------------------------------------------------------- starts

WEIGHTS = [6, 5, 5, 4, 4, 3, 3]


def test_a_feasible_start_is_accepted() -> None:
    start = placed(WEIGHTS, 5, [0, 1, 1, 2, 2, 3, 3])
    result = solve(packing(WEIGHTS, 10, 5), time_limit_s=20, start=start)
    assert result.start_status is StartStatus.ACCEPTED
    assert result.objective == 3


def test_an_infeasible_start_is_rejected_and_not_used() -> None:
    start = placed(WEIGHTS, 5, [0] * 7)
    result = solve(packing(WEIGHTS, 10, 5), time_limit_s=20, start=start)
    assert result.start_status is StartStatus.REJECTED
    assert "row r7" in result.start_note
    assert result.objective == 3


@pytest.mark.parametrize("value", [0.4, 2.0])
def test_a_start_that_is_not_whole_or_out_of_bounds_is_rejected(value: float) -> None:
    start = placed(WEIGHTS, 5, [0, 1, 1, 2, 2, 3, 3])
    start[0] = value
    result = solve(packing(WEIGHTS, 10, 5), time_limit_s=20, start=start)
    assert result.start_status is StartStatus.REJECTED
    assert "column 0" in result.start_note


def test_a_partial_start_is_completed() -> None:
    start = placed(WEIGHTS, 5, [0, 1, 1, 2, 2, 3, 3])
    start[20:] = np.nan
    result = solve(packing(WEIGHTS, 10, 5), time_limit_s=20, start=start)
    assert result.start_status is StartStatus.ACCEPTED
    assert result.objective == result.bound == 3


def test_a_partial_start_without_completion_is_rejected() -> None:
    start = np.full(40, np.nan)
    start[[0, 5, 10]] = 1  # 6 + 5 + 5 in one cell
    result = solve(packing(WEIGHTS, 10, 5), time_limit_s=20, start=start)
    assert result.start_status is StartStatus.REJECTED
    assert "completion" in result.start_note
    assert result.objective == result.bound == 3


def test_a_partial_start_leaves_no_bound_of_the_restricted_model() -> None:
    model, start = knapsack(15), np.full(15, np.nan)
    start[:11] = 0  # a poor beginning, whose own optimum is far from the true one
    seen: list[Progress] = []
    result = solve(
        model, time_limit_s=60, node_limit=5, start=start, on_progress=seen.append
    )
    assert result.start_status is StartStatus.ACCEPTED
    best = solve(model, time_limit_s=60).objective
    assert best is not None
    assert all(p.upper is None or p.upper >= best for p in seen)


def test_a_start_of_a_mixed_model_may_leave_continuous_columns_open() -> None:
    start = np.array([1, 0, 0, 1, 0, 1, np.nan])
    result = solve(makespan([3, 2, 1], 2), time_limit_s=20, start=start)
    assert result.start_status is StartStatus.ACCEPTED
    assert result.objective == 3


@pytest.mark.parametrize("start", [np.zeros(3), np.full(40, np.inf)])
def test_a_start_of_the_wrong_shape_is_refused(start: np.ndarray) -> None:
    with pytest.raises(InstanceError, match=r"\(40,\)"):
        solve(packing(WEIGHTS, 10, 5), time_limit_s=20, start=start)


def test_an_lp_takes_no_start() -> None:
    with pytest.raises(InstanceError, match="integer columns"):
        solve(packing(WEIGHTS, 10, 5).relaxed(), time_limit_s=20, start=np.zeros(40))
