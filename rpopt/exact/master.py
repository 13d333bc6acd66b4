"""The master problem: how often to use each pattern, as a linear programme in HiGHS.

Gilmore and Gomory's set covering relaxation: minimise the number of patterns used such
that every item type is covered. Its dual gives each type a value. With hundreds of
different weights the optimal values are nearly a smooth function of the weight, so the
dual may be restricted to piecewise linear functions of the weight with few knots: the
rows of the types are added up, weighted, into one row per knot. That relaxes the primal
problem, so it still gives bounds, from a small programme that needs few iterations.
Optimal values also grow with the weight (an item may replace any heavier one); columns
that exchange neighbouring knots say so.

Sources: Gilmore and Gomory (1961); Valerio de Carvalho (2005) and Ben Amor, Desrosiers
and Valerio de Carvalho (2006) for dual cuts and dual-optimal inequalities.

Axis letters: K item types, M rows (knots), Q patterns.
"""

import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knots import shares
from rpopt.exact.patterns import PatternPool
from rpopt.highs import LinearModel, LpHandle, Termination
from rpopt.highs.linear import FloatArray
from rpopt.records import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LpPoint:
    """An optimal solution of the master problem.

    Parameters
    ----------
    objective
        Cells, fractional; fixed ones included.
    use_Q
        How often each pattern of the pool is used.
    value_K
        Dual value of an item of each type.
    """

    objective: float
    use_Q: FloatArray
    value_K: FloatArray


class Master:
    """The master problem over a growing pool of patterns.

    Parameters
    ----------
    types
        Item types; their demand is to be covered.
    pool
        Patterns; they must be able to cover the demand. New ones are taken in by
        `take_in`.
    knot_M
        Weights of the knots, increasing; None gives each type its own row.
    deadline_s
        When the solver is ended at the latest, on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        types: ItemTypes,
        pool: PatternPool,
        knot_M: Int64Array | None = None,
        *,
        deadline_s: float = math.inf,
    ) -> None:
        self.types, self.pool = types, pool
        self.share_KM = shares(types, knot_M)
        self.seconds_s = 0.0
        self.num_solves = 0
        matrix_QM = (pool.matrix() @ self.share_KM).tocsr()
        exchange = _exchanges(self.share_KM.shape[1], none=knot_M is None)
        matrix, cost = _stack(matrix_QM, exchange)
        self._column_Q = np.arange(len(pool))
        self._num_columns = len(cost)
        self._banned_Q = np.zeros(len(pool), dtype=np.bool_)
        self._block: int | None = None
        num_rows = matrix.shape[1]
        model = LinearModel(
            col_cost=cost,
            col_lower=np.zeros_like(cost),
            col_upper=np.full_like(cost, np.inf),
            integrality=np.zeros(cost.size, dtype=np.bool_),
            row_lower=types.demand_K @ self.share_KM,
            row_upper=np.full(num_rows, np.inf),
            starts=matrix.indptr,
            rows=matrix.indices,
            coefs=matrix.data,
        )
        self._lp = LpHandle(model, deadline_s=deadline_s)

    def __enter__(self) -> Self:
        """Return the master problem itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the solver's process."""
        self._lp.close()

    def take_in(self) -> None:
        """Add the patterns that are new in the pool as columns."""
        first = self._column_Q.size
        new_QM = (self.pool.matrix(first) @ self.share_KM).tocsr()
        new_QM.sort_indices()
        num = new_QM.shape[0]
        free = np.full(num, np.inf)
        self._add(np.ones(num), new_QM, free)
        columns = np.arange(self._num_columns - num, self._num_columns)
        self._column_Q = np.concatenate([self._column_Q, columns])
        self._banned_Q = np.concatenate([self._banned_Q, np.zeros(num, dtype=bool)])

    def restrict(self, residual_K: Int64Array, num_fixed: int) -> None:
        """Leave only a residual demand to cover, by patterns that have items left.

        What is covered otherwise, by `num_fixed` cells, becomes one column that is held
        at 1; the basis stays dual feasible.
        """
        from scipy.sparse import csr_array

        if self._block is not None:
            self._lp.set_bounds([self._block], [0.0], [0.0])
            self._block = None
        covered_K = self.types.demand_K - residual_K
        if covered_K.any():
            covered_M = csr_array((covered_K @ self.share_KM).reshape(1, -1))
            self._add(np.array([float(num_fixed)]), covered_M, np.zeros(1))
            self._block = self._num_columns - 1
            self._lp.set_bounds([self._block], [1.0], [1.0])
        banned_Q = ~self.pool.fits(residual_K)[: self._column_Q.size]
        changed = np.flatnonzero(banned_Q != self._banned_Q)
        upper = np.where(banned_Q[changed], 0.0, np.inf)
        self._lp.set_bounds(self._column_Q[changed], np.zeros(changed.size), upper)
        self._banned_Q = banned_Q

    def solve(self, time_limit_s: float) -> LpPoint | None:
        """Solve from the last basis; None when the time is over."""
        result = self._lp.solve(max(0.0, time_limit_s))
        self.seconds_s += result.runtime_s
        self.num_solves += 1
        if result.status is not Termination.OPTIMAL:
            return None
        assert result.x is not None
        assert result.row_duals is not None
        assert result.objective is not None
        value_M = np.maximum(result.row_duals, 0.0)
        return LpPoint(
            objective=result.objective,
            use_Q=result.x[self._column_Q],
            value_K=self.share_KM @ value_M,
        )

    def _add(self, costs: FloatArray, matrix: Any, upper: FloatArray) -> None:
        lower = np.zeros(costs.size)
        self._lp.add_columns(
            costs, matrix.indptr, matrix.indices, matrix.data, lower, upper
        )
        self._num_columns += costs.size


def _exchanges(num_rows: int, *, none: bool) -> Any:
    """Return columns +1 at a knot and -1 at the next heavier one, sparse (M - 1, M)."""
    from scipy.sparse import csr_array, eye_array

    if none or num_rows < 2:
        return csr_array((0, num_rows))
    shape = (num_rows - 1, num_rows)
    return (eye_array(*shape, k=0) - eye_array(*shape, k=1)).tocsr()


def _stack(patterns: Any, exchanges: Any) -> tuple[Any, FloatArray]:
    from scipy.sparse import vstack

    matrix = vstack([patterns, exchanges], format="csr").astype(np.float64)
    matrix.sort_indices()
    cost = np.zeros(matrix.shape[0])
    cost[: patterns.shape[0]] = 1.0
    return matrix, cost
