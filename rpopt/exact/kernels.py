"""Compiled loops of the knapsack dynamic programme.

Imported on first use only, since numba takes a while to load; the compiled code is
cached on disk. Values are whole numbers, in int32 where they fit (twice as fast) and
else in int64. A table holds, for every number of samples and of tokens, the largest
value that fits into them.

Axis letters: T slots (an item type, or several copies of it), S numbers of samples,
W numbers of tokens, B blocks of slots, Q patterns.
"""

from typing import Any

import numba
import numpy as np

compiled = numba.njit(cache=True, nogil=True)


@compiled
def _take(
    table_SW: Any, weight: int, samples: int, value: Any, full: int, top: int
) -> None:
    """Offer one slot to all token counts up to `top`, and to the full capacity.

    A stretch of `weight` entries never reads what it writes, so that the compiler can
    use vector instructions although the table is updated in place.
    """
    for s in range(table_SW.shape[0] - 1, samples - 1, -1):
        with_SW, rest_SW = table_SW[s], table_SW[s - samples]
        with_SW[full] = max(with_SW[full], rest_SW[full - weight] + value)
        end = top + 1 - weight
        while end > 0:
            begin = max(0, end - weight)
            target = with_SW[begin + weight : end + weight]
            source = rest_SW[begin:end]
            for j in range(end - begin):
                target[j] = max(target[j], source[j] + value)
            end = begin


@compiled
def fill(
    weight_T: Any,
    samples_T: Any,
    value_T: Any,
    stride: int,
    kept_BSW: Any,
    table_SW: Any,
    best_T: Any,
) -> None:
    """Offer all slots in turn; keep the table before every `stride` of them.

    `best_T` receives the best value for the full capacity after each slot. Token counts
    between `full` and `full` less the lightest slot are never asked for again.
    """
    full = table_SW.shape[1] - 1
    top = full - weight_T.min()
    for t in range(weight_T.size):
        if t % stride == 0:
            kept_BSW[t // stride] = table_SW
        _take(table_SW, weight_T[t], samples_T[t], value_T[t], full, top)
        best_T[t] = table_SW[-1, full]


@compiled
def trace(
    weight_T: Any,
    samples_T: Any,
    value_T: Any,
    stride: int,
    kept_BSW: Any,
    last_Q: Any,
    chosen_QT: Any,
) -> None:
    """Read back the best pattern of the slots 0..last_Q[q], for every q.

    No decision was stored: where a block of slots changed the value, one of its
    2^stride subsets explains the change.
    """
    weight_M = np.zeros(1 << stride, np.int64)
    samples_M = np.zeros(1 << stride, np.int64)
    value_M = np.zeros(1 << stride, np.int64)
    for q in range(last_Q.size):
        tokens, samples = kept_BSW.shape[2] - 1, kept_BSW.shape[1] - 1
        end = last_Q[q] + 1
        target = np.int64(-1)  # unknown for the last block, which may be cut short
        for b in range((end - 1) // stride, -1, -1):
            table_SW = kept_BSW[b]
            best = np.int64(table_SW[samples, tokens])
            begin = b * stride
            if best != target:
                best_mask = 0
                for mask in range(1, 1 << (end - begin)):
                    rest = mask & (mask - 1)
                    t = begin
                    while not ((mask ^ rest) >> (t - begin)) & 1:
                        t += 1
                    weight_M[mask] = weight_M[rest] + weight_T[t]
                    samples_M[mask] = samples_M[rest] + samples_T[t]
                    value_M[mask] = value_M[rest] + value_T[t]
                    if weight_M[mask] <= tokens and samples_M[mask] <= samples:
                        left = table_SW[
                            samples - samples_M[mask], tokens - weight_M[mask]
                        ]
                        if left + value_M[mask] > best:
                            best, best_mask = left + value_M[mask], mask
                for t in range(begin, end):
                    if (best_mask >> (t - begin)) & 1:
                        chosen_QT[q, t] = 1
                tokens -= weight_M[best_mask]
                samples -= samples_M[best_mask]
            target = np.int64(table_SW[samples, tokens])
            end = begin
            if target == 0:
                break
