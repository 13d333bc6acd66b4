"""The kept LP: columns, bounds, duals, several at once."""

import time

import numpy as np
import pytest

from rpopt.errors import InstanceError, SolverError
from rpopt.highs import LinearModel, LpHandle, Termination, solve
from tests.highs.models import dense, knapsack

INF = np.inf
SIZES, COUNTS, ROLL = [45, 36, 31, 14], [97, 610, 395, 211], 100  # Gilmore and Gomory


def cutting_stock() -> LinearModel:
    """One pattern per size, as many as fit; optimum of the full LP 452.25."""
    patterns = np.diag([ROLL // s for s in SIZES])
    return dense([1] * 4, patterns.tolist(), COUNTS, [INF] * 4)


def best_pattern(duals: np.ndarray) -> tuple[float, list[int]]:
    """The knapsack of the pricing problem, by dynamic programming."""
    best: list[tuple[float, list[int]]] = [(0.0, [0] * 4) for _ in range(ROLL + 1)]
    for room in range(1, ROLL + 1):
        best[room] = best[room - 1]
        for i, size in enumerate(SIZES):
            if size <= room:
                value, pattern = best[room - size]
                if value + duals[i] > best[room][0]:
                    more = [p + (j == i) for j, p in enumerate(pattern)]
                    best[room] = (value + duals[i], more)
    return best[ROLL]


def test_column_generation_reaches_the_lp_optimum() -> None:
    with LpHandle(cutting_stock()) as lp:
        for _ in range(20):
            result = lp.solve(time_limit_s=10)
            assert result.status is Termination.OPTIMAL
            assert result.row_duals is not None
            value, pattern = best_pattern(result.row_duals)
            if value <= 1 + 1e-9:
                break
            rows = np.flatnonzero(pattern)
            values = np.array(pattern)[rows]
            lp.add_columns([1], [0, len(rows)], rows, values, [0], [INF])
        assert result.objective == pytest.approx(452.25)
        assert result.x is not None
        assert len(result.x) == lp.num_col > 4
        assert result.reduced_costs is not None
        assert result.reduced_costs.min() > -1e-7
        assert result.row_duals @ COUNTS == pytest.approx(452.25)


def test_bounds_are_changed_and_freed_again() -> None:
    with LpHandle(cutting_stock()) as lp:
        free = lp.solve(time_limit_s=10)
        lp.set_bounds([1], [400], [400])
        fixed = lp.solve(time_limit_s=10)
        assert fixed.x is not None
        assert free.objective is not None
        assert fixed.x[1] == 400
        assert fixed.objective == pytest.approx(free.objective + 400 - 305)
        lp.set_bounds([1, 0], [0, 0], [INF, 0])
        assert lp.solve(time_limit_s=10).status is Termination.INFEASIBLE
        lp.set_bounds([0], [0], [INF])
        assert lp.solve(time_limit_s=10).objective == pytest.approx(free.objective)


def test_a_re_solve_starts_from_the_kept_basis() -> None:
    with LpHandle(knapsack(400).relaxed()) as lp:
        first = lp.solve(time_limit_s=10)
        again = lp.solve(time_limit_s=10)
    assert first.iterations > 0
    assert again.iterations == 0
    assert again.objective == first.objective


def test_maximising_has_the_signs_of_the_model() -> None:
    with LpHandle(dense([3], [[1]], [-INF], [4], maximize=True, offset=1)) as lp:
        lp.add_columns([5, 1], [0, 1, 2], [0, 0], [1, 1], [0, 0], [INF, INF])
        result = lp.solve(time_limit_s=10)
    assert result.objective == 21
    assert result.row_duals == pytest.approx([5])
    assert result.reduced_costs == pytest.approx([-2, 0, -4])


def test_the_answers_are_those_of_solve() -> None:
    model = knapsack(200).relaxed()
    with LpHandle(model) as lp:
        kept = lp.solve(time_limit_s=10)
    once = solve(model, time_limit_s=10)
    assert kept.objective == pytest.approx(once.objective)
    assert kept.row_duals == pytest.approx(once.row_duals)


def test_several_handles_at_once() -> None:
    handles = [LpHandle(knapsack(50, seed).relaxed()) for seed in range(3)]
    try:
        found = [lp.solve(time_limit_s=10).objective for lp in reversed(handles)]
        again = [lp.solve(time_limit_s=10).objective for lp in reversed(handles)]
    finally:
        for lp in handles:
            lp.close()
    assert found == again
    assert len(set(found)) == 3


def test_a_time_limit_per_solve_not_per_handle() -> None:
    model = knapsack(3000).relaxed()
    with LpHandle(model) as lp:
        assert lp.solve(time_limit_s=0).status is Termination.TIME_LIMIT
        begin_s = time.monotonic()
        for _ in range(5):
            lp.set_bounds([0], [0], [1])
            assert lp.solve(time_limit_s=5).status is Termination.OPTIMAL
        assert time.monotonic() - begin_s < 20


def test_closing_twice_and_using_after() -> None:
    lp = LpHandle(cutting_stock())
    lp.close()
    lp.close()
    with pytest.raises(SolverError, match="closed"):
        lp.set_bounds([0], [0], [1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InstanceError, match="relaxed"):
        LpHandle(knapsack())
    with LpHandle(cutting_stock()) as lp:
        with pytest.raises(InstanceError, match="M = 4"):
            lp.add_columns([1], [0, 1], [4], [1], [0], [1])
        with pytest.raises(InstanceError, match="starts"):
            lp.add_columns([1], [0], [4], [1], [0], [1])
        with pytest.raises(InstanceError, match="below 4"):
            lp.set_bounds([4], [0], [1])
        with pytest.raises(InstanceError, match="none fits"):
            lp.set_bounds([0], [2], [1])
        assert lp.solve(time_limit_s=10).status is Termination.OPTIMAL
