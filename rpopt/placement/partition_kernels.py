"""Compiled loops over sets of experts that may share a rank, and partitions into them.

Imported on first use only, since numba takes a while to load; the compiled code is
cached on disk. Sets are whole numbers, bit e for the e-th hottest expert. Every loop
counts its steps and can be stopped and resumed: its state is in arrays.

Axis letters: E experts, hottest first, Z sets, D depths (ranks filled).
"""

from typing import Any

import numba
import numpy as np

EXHAUSTED, FOUND, STOPPED = range(3)
_compiled = numba.njit(cache=True, nogil=True)


@_compiled
def list_sets(
    load_E: Any,
    size: int,
    low: int,
    high: int,
    most_steps: int,
    mask_Z: Any,
    load_Z: Any,
) -> Any:
    """List the sets of one size with a load from low to high, as many as there is room.

    Returns their number and the steps taken; the number is -1 when there are more or
    they take longer.
    """
    num = load_E.size
    sum_E1 = np.zeros(num + 1, np.int64)
    for e in range(num):
        sum_E1[e + 1] = sum_E1[e] + load_E[e]
    chosen_D = np.zeros(size, np.int64)
    depth, load, count, steps = 0, 0, 0, 0
    while depth >= 0:
        steps += 1
        if steps > most_steps:
            return -1, steps
        e, rest = chosen_D[depth], size - depth - 1
        back = e + rest >= num
        if not back:
            # The rest is at most what comes next, and at least the coldest of all.
            with_e = load + load_E[e]
            back = with_e + sum_E1[e + 1 + rest] - sum_E1[e + 1] < low
        if back:
            depth -= 1
            if depth >= 0:
                load -= load_E[chosen_D[depth]]
                chosen_D[depth] += 1
        elif with_e + sum_E1[num] - sum_E1[num - rest] > high:
            chosen_D[depth] += 1
        elif rest > 0:
            load = with_e
            depth += 1
            chosen_D[depth] = e + 1
        else:
            if count == mask_Z.size:
                return -1, steps
            mask = np.uint64(0)
            for d in range(size):
                mask |= np.uint64(1) << np.uint64(chosen_D[d])
            mask_Z[count], load_Z[count] = mask, with_e
            count += 1
            chosen_D[depth] += 1
    return count, steps


@_compiled
def _hottest_left(used: Any) -> Any:
    """Return the hottest expert that is not used: the lowest bit that is not set."""
    expert = 0
    while (used >> np.uint64(expert)) & np.uint64(1):
        expert += 1
    return expert


@_compiled
def partition(
    mask_Z: Any,
    slack_Z: Any,
    start_E1: Any,
    most_steps: int,
    place_D: Any,
    used_D: Any,
    left_D: Any,
    depth_1: Any,
) -> Any:
    """Fill ranks in turn with disjoint sets whose slacks fit in what is left.

    The next rank takes the hottest expert that is left; sets are sorted by their
    hottest expert (set e from `start_E1[e]`), then by slack. Returns how it ended and
    the steps taken; after FOUND, `place_D` says where the chosen sets stand.
    """
    steps, depth = 0, depth_1[0]
    while depth >= 0:
        if steps >= most_steps:
            depth_1[0] = depth
            return STOPPED, steps
        z, end = place_D[depth], start_E1[_hottest_left(used_D[depth]) + 1]
        while z < end and slack_Z[z] <= left_D[depth] and mask_Z[z] & used_D[depth]:
            z += 1
            steps += 1
        steps += 1
        place_D[depth] = z
        if z == end or slack_Z[z] > left_D[depth]:
            depth -= 1
            if depth >= 0:
                place_D[depth] += 1
        elif depth + 1 == place_D.size:
            return FOUND, steps
        else:
            used_D[depth + 1] = used_D[depth] | mask_Z[z]
            left_D[depth + 1] = left_D[depth] - slack_Z[z]
            depth += 1
            place_D[depth] = start_E1[_hottest_left(used_D[depth])]
    return EXHAUSTED, steps
