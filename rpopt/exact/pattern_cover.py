"""All patterns that a packing into z cells can use, and the exact cover by them.

The second opinion on a gap of one: another enumeration of the same possibilities and
another integer model than the flow of `arc_fixing`.

Source: Baldacci, Coniglio, Cordeau and Furini (2023), A numerically exact algorithm for
the bin-packing problem.

Axis letters: K item types, W token positions, Q patterns.
"""

import math
from collections.abc import Sequence

import numpy as np

from rpopt.exact.column_generation import DualBound
from rpopt.exact.item_types import ItemTypes
from rpopt.highs.linear import LinearModel
from rpopt.records import Int64Array
from rpopt.stop import require_time

_STEPS_PER_LOOK = 4096  # at the clock


def enumerate_patterns(
    types: ItemTypes,
    bounds: Sequence[DualBound],
    num_cells: int,
    limit: int,
    *,
    deadline_s: float = math.inf,
) -> Int64Array | None:
    """Return every pattern whose slack fits, shape (Q, K); None above `limit` of them.

    The slack of a pattern is what it lacks of the best value of a cell; in z cells the
    slacks add up to z times the best value less the value of all the items. From the
    deadline on (`time.monotonic`) it raises an `OutOfTimeError`.
    """
    floors = [(num_cells - 1) * -b.best + b.total for b in bounds]
    suffix_KW = _suffix_values(types, bounds[0].value_K, deadline_s)
    value_BK = np.stack([b.value_K for b in bounds])
    weight = types.weight_K.tolist()
    value = bounds[0].value_K.tolist()
    found: list[Int64Array] = []
    steps, counts = 0, [0] * types.num_types
    stack = [(0, types.capacity, 0, 0)]  # type, room, value, copies of the type before
    while stack:
        k, room, worth, copies = stack.pop()
        if k:
            counts[k - 1] = copies
        if worth + int(suffix_KW[k, room]) < floors[0]:
            continue
        steps += 1
        if steps > 50 * limit:
            return None
        if steps % _STEPS_PER_LOOK == 0:
            require_time(deadline_s)
        if k == types.num_types:
            pattern_K = np.array(counts, dtype=np.int64)
            cell = np.repeat(np.arange(types.num_types), pattern_K)
            if (value_BK @ pattern_K >= floors).all() and types.is_cell(cell):
                found.append(pattern_K)
                if len(found) > limit:
                    return None
            continue
        most = min(int(types.demand_K[k]), room // weight[k])
        stack.extend(
            (k + 1, room - c * weight[k], worth + c * value[k], c)
            for c in range(most + 1)
        )
    return np.array(found, dtype=np.int64).reshape(-1, types.num_types)


def _suffix_values(
    types: ItemTypes, value_K: Int64Array, deadline_s: float
) -> Int64Array:
    """Return the best value of types k.. in a room of w tokens, shape (K + 1, W)."""
    best_KW = np.zeros((types.num_types + 1, types.capacity + 1), dtype=np.int64)
    for k in range(types.num_types - 1, -1, -1):
        require_time(deadline_s)
        weight, value = int(types.weight_K[k]), int(value_K[k])
        best_KW[k] = best_KW[k + 1]
        for copies in range(1, int(types.demand_K[k]) + 1):
            tokens = copies * weight
            if tokens > types.capacity:
                break
            shifted = best_KW[k + 1, : types.capacity + 1 - tokens] + copies * value
            np.maximum(best_KW[k, tokens:], shifted, out=best_KW[k, tokens:])
    return best_KW


def cover_model(
    types: ItemTypes, pattern_QK: Int64Array, num_cells: int
) -> LinearModel:
    """Return the feasibility problem: each item once, in at most z patterns."""
    q, k = np.nonzero(pattern_QK)
    num = len(pattern_QK)
    demand_K = types.demand_K.astype(np.float64)
    return LinearModel.from_triplets(
        rows=np.concatenate([k, np.full(num, types.num_types)]),
        cols=np.concatenate([q, np.arange(num)]),
        values=np.concatenate([pattern_QK[q, k], np.ones(num)]),
        col_cost=np.zeros(num),
        col_lower=np.zeros(num),
        col_upper=np.full(num, float(num_cells)),
        integrality=np.ones(num, dtype=np.bool_),
        row_lower=np.concatenate([demand_K, [-np.inf]]),
        row_upper=np.concatenate([demand_K, [float(num_cells)]]),
        integral_objective=True,
    )
