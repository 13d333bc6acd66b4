"""Small models with known answers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rpopt.highs import LinearModel


def dense(
    cost: Sequence[float],
    matrix: Sequence[Sequence[float]],
    row_lower: Sequence[float],
    row_upper: Sequence[float],
    *,
    lower: float | Sequence[float] = 0.0,
    upper: float | Sequence[float] = np.inf,
    integer: bool | Sequence[bool] = False,
    **fields: Any,
) -> LinearModel:
    """A model from a dense matrix."""
    rows, cols = np.nonzero(np.array(matrix, dtype=float).reshape(-1, len(cost)))
    values = np.array(matrix, dtype=float).reshape(-1, len(cost))[rows, cols]
    return LinearModel.from_triplets(
        rows=rows,
        cols=cols,
        values=values,
        col_cost=cost,
        col_lower=np.broadcast_to(lower, len(cost)),
        col_upper=np.broadcast_to(upper, len(cost)),
        integrality=np.broadcast_to(integer, len(cost)),
        row_lower=row_lower,
        row_upper=row_upper,
        **fields,
    )


def packing(weights: Sequence[int], cap: int, cells: int, **fields: Any) -> LinearModel:
    """Fewest cells, as the textbook assignment model: x[i, b] first, then y[b]."""
    num = len(weights)
    triplets = []
    for b in range(cells):
        triplets.append((num + b, num * cells + b, -cap))
        for i, weight in enumerate(weights):
            triplets += [(i, i * cells + b, 1), (num + b, i * cells + b, weight)]
    rows, cols, values = zip(*triplets, strict=True)
    num_col = num * cells + cells
    return LinearModel.from_triplets(
        rows=rows,
        cols=cols,
        values=values,
        col_cost=[0] * (num * cells) + [1] * cells,
        col_lower=np.zeros(num_col),
        col_upper=np.ones(num_col),
        integrality=np.ones(num_col, dtype=bool),
        row_lower=[1] * num + [-np.inf] * cells,
        row_upper=[1] * num + [0] * cells,
        integral_objective=True,
        **fields,
    )


def placed(weights: Sequence[int], cells: int, cell_of: Sequence[int]) -> np.ndarray:
    """The point of `packing` that puts item i into cell_of[i]."""
    num = len(weights)
    x = np.zeros(num * cells + cells)
    for i, b in enumerate(cell_of):
        x[i * cells + b] = x[num * cells + b] = 1
    return x


def knapsack(num: int = 40, seed: int = 0) -> LinearModel:
    """Three knapsack rows: HiGHS needs many nodes."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(100, 900, (3, num))
    worth = weight.sum(0) + rng.integers(0, 30, num)
    return dense(
        worth.tolist(),
        weight.tolist(),
        [-np.inf] * 3,
        (weight.sum(1) // 2).tolist(),
        upper=1,
        integer=True,
        maximize=True,
        integral_objective=True,
    )


def makespan(loads: Sequence[int], ranks: int) -> LinearModel:
    """Assign loads to ranks; the last column is the continuous peak."""
    num = len(loads)
    peak = num * ranks
    triplets = [(num + p, peak, -1) for p in range(ranks)]
    for i, load in enumerate(loads):
        for p in range(ranks):
            triplets += [(i, i * ranks + p, 1), (num + p, i * ranks + p, load)]
    rows, cols, values = zip(*triplets, strict=True)
    return LinearModel.from_triplets(
        rows=rows,
        cols=cols,
        values=values,
        col_cost=[0] * peak + [1],
        col_lower=np.zeros(peak + 1),
        col_upper=[1] * peak + [np.inf],
        integrality=[True] * peak + [False],
        row_lower=[1] * num + [-np.inf] * ranks,
        row_upper=[1] * num + [0] * ranks,
        integral_objective=True,
    )
