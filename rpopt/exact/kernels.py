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
    begin: int,
    end: int,
    stride: int,
    kept_BSW: Any,
    table_SW: Any,
    best_T: Any,
) -> None:
    """Offer slots begin..end in turn; keep the table before every `stride` of all.

    `best_T` receives the best value for the full capacity after each slot. Token counts
    between `full` and `full` less the lightest slot are never asked for again.
    """
    full = table_SW.shape[1] - 1
    top = full - weight_T.min()
    for t in range(begin, end):
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


@compiled
def branch(
    weight_T: Any,
    samples_T: Any,
    value_T: Any,
    capacity: int,
    sample_limit: int,
    most_steps: int,
    chosen_T: Any,
) -> int:
    """Return the best value by depth-first search, or -1 above `most_steps` steps.

    Slots come in the order of falling value per token; what is left of the capacity,
    filled at the ratio of the next slot, bounds what a node can still reach.
    """
    num_slots = weight_T.size
    lightest_T = np.empty(num_slots + 1, np.int64)
    lightest_T[num_slots] = capacity + 1
    for t in range(num_slots - 1, -1, -1):
        lightest_T[t] = min(lightest_T[t + 1], weight_T[t])
    path_T = np.empty(num_slots, np.int64)
    depth, t = 0, 0
    room, places, worth, best = capacity, sample_limit, 0, 0
    for _ in range(most_steps):
        can_reach = 0
        if t < num_slots and lightest_T[t] <= room:
            can_reach = room * value_T[t] // weight_T[t] + 1  # order is by floats
        if can_reach > best - worth:
            if weight_T[t] <= room and samples_T[t] <= places:
                path_T[depth] = t
                depth += 1
                room -= weight_T[t]
                places -= samples_T[t]
                worth += value_T[t]
                if worth > best:
                    best = worth
                    chosen_T[:] = 0
                    for d in range(depth):
                        chosen_T[path_T[d]] = 1
            t += 1
            continue
        if depth == 0:
            return best
        depth -= 1
        t = path_T[depth]
        room += weight_T[t]
        places += samples_T[t]
        worth -= value_T[t]
        t += 1
    return -1
