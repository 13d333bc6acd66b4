"""Compiled local search of one layer: the best exchange of experts between two ranks.

Imported on first use only, since numba takes a while to load; the compiled code is
cached on disk. Plain loops where NumPy has a word for it: they compile in a fraction of
the time.

Every rank keeps a table of its subset sums, sorted within each subset size. One pass
over the tables of two ranks, with a finger in each, finds the exchange of equally many
experts that balances the two best (the two-list method of Horowitz and Sahni, 1974);
for up to eleven experts per rank that is the best re-partition of the two. A descent
exchanges between the peak rank and the rank where that helps most. Then random swaps
kick the placement and the descent starts again; a worse result is taken back
(iterated local search).

Axis letters: E experts, P EP ranks, M experts per rank, Z subsets, J sizes of subsets.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from rpopt.counter import GOLDEN, MIX_1, MIX_2
from rpopt.records import Int64Array

INDEX_BITS = 14
_INDEX_MASK = 2**INDEX_BITS - 1
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_S27, _S30, _S31, _S32 = (np.uint64(bits) for bits in (27, 30, 31, 32))

Function = TypeVar("Function", bound=Callable[..., Any])
_compiled = numba.njit(cache=True, nogil=True)


def _inner(function: Function) -> Function:
    """Compile what only compiled code calls: without wrappers, in half the time."""
    no_wrappers: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Function = numba.njit(cache=True, nogil=True, **no_wrappers)(function)
    return compiled


class Subsets(NamedTuple):
    """The sets of members of a rank that are exchanged, by size; see `search.py`."""

    position_ZJ: Any
    start_J1: Any


class State(NamedTuple):
    """A placement of one layer and what the search keeps about it.

    Parameters
    ----------
    load_E
        Load of each expert.
    member_PM
        Experts on each rank.
    load_P
        Load of each rank.
    sum_PZ
        Sorted subset sums of each rank: the sum shifted by `INDEX_BITS`, and in the
        bits below, which subset it is.
    random_2
        Key and number of draws so far.
    """

    load_E: Any
    member_PM: Any
    load_P: Any
    sum_PZ: Any
    random_2: Any


def search(
    load_E: Int64Array,
    member_PM: Int64Array,
    subsets: Subsets,
    *,
    bound: int,
    kicks: int,
    kick_swaps: int,
    key: int,
) -> Int64Array:
    """Return the experts on each rank, [P, M], with the smallest peak that was found.

    Parameters
    ----------
    load_E
        Load of each expert; their sum is below 2**(62 - INDEX_BITS).
    member_PM
        Experts on each rank at the start.
    subsets
        What may be exchanged.
    bound
        The search ends when the peak meets it.
    kicks
        Number of kicks at most.
    kick_swaps
        Random swaps per kick.
    key
        Key of the random draws.
    """
    num_ranks, num_subsets = len(member_PM), len(subsets.position_ZJ)
    assert num_subsets <= 2**INDEX_BITS
    best_PM = np.array(member_PM, dtype=np.int64)
    state = State(
        load_E=load_E,
        member_PM=best_PM.copy(),
        load_P=np.empty(num_ranks, dtype=np.int64),
        sum_PZ=np.empty((num_ranks, num_subsets), dtype=np.int64),
        random_2=np.array([key, 0], dtype=np.uint64),
    )
    _search(state, subsets, best_PM, bound, kicks, kick_swaps)
    return best_PM


@_inner
def _below(state: Any, limit: int) -> Any:
    """Draw an integer in [0, limit): `draw` and `below` of `rpopt.counter`."""
    value = state.random_2[0] + state.random_2[1] * _GOLDEN
    state.random_2[1] += np.uint64(1)
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    value ^= value >> _S31
    return np.int64(((value >> _S32) * np.uint64(limit)) >> _S32)


@_inner
def _sort(value_Z: Any, start: int, end: int) -> None:
    """Sort a stretch in place (Shell, 1959): fast for tens to hundreds of values."""
    gap = 1
    while 3 * gap < end - start:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(start + gap, end):
            value, j = value_Z[i], i
            while j >= start + gap and value_Z[j - gap] > value:
                value_Z[j] = value_Z[j - gap]
                j -= gap
            value_Z[j] = value
        gap //= 3


@_inner
def _refresh(state: Any, subsets: Any, rank: int) -> None:
    """Compute the load and the sorted subset sums of a rank from its members."""
    load_E, member_M, sum_Z = state.load_E, state.member_PM[rank], state.sum_PZ[rank]
    state.load_P[rank] = 0
    for expert in member_M:
        state.load_P[rank] += load_E[expert]
    for size in range(1, subsets.start_J1.size):
        start, end = subsets.start_J1[size - 1], subsets.start_J1[size]
        for z in range(start, end):
            total = 0
            for column in range(size):
                total += load_E[member_M[subsets.position_ZJ[z, column]]]
            sum_Z[z] = (total << INDEX_BITS) | z
        _sort(sum_Z, start, end)


@_inner
def _swap(state: Any, a: int, i: int, b: int, j: int) -> None:
    member_PM = state.member_PM
    member_PM[a, i], member_PM[b, j] = member_PM[b, j], member_PM[a, i]


@_inner
def _exchange(state: Any, subsets: Any, a: int, i: int, b: int, j: int) -> None:
    """Exchange the sets at positions i and j of the sorted sums of ranks a and b."""
    size = 1
    while subsets.start_J1[size] <= i:
        size += 1
    mine_J = subsets.position_ZJ[state.sum_PZ[a, i] & _INDEX_MASK]
    theirs_J = subsets.position_ZJ[state.sum_PZ[b, j] & _INDEX_MASK]
    for column in range(size):
        _swap(state, a, mine_J[column], b, theirs_J[column])
    _refresh(state, subsets, a)
    _refresh(state, subsets, b)


@_inner
def _best_exchange(state: Any, subsets: Any, a: int, b: int) -> Any:
    """Find the exchange between ranks a and b after which their loads differ least.

    Returns the difference, and where in the sorted sums of a and b the sets stand.
    """
    sum_aZ, sum_bZ = state.sum_PZ[a], state.sum_PZ[b]
    before = state.load_P[a] - state.load_P[b]
    least, mine, theirs = before, 0, 0
    for size in range(subsets.start_J1.size - 1):
        i = j = subsets.start_J1[size]
        end = subsets.start_J1[size + 1]
        while i < end and j < end:
            moved = (sum_aZ[i] >> INDEX_BITS) - (sum_bZ[j] >> INDEX_BITS)
            after = before - 2 * moved
            if abs(after) < least:
                least, mine, theirs = abs(after), i, j
            if after > 0:
                i += 1
            elif after < 0:
                j += 1
            else:
                return least, mine, theirs
    return least, mine, theirs


@_inner
def _peak_rank(state: Any) -> Any:
    """Return the rank with the largest load, the first of equals."""
    best = 0
    for rank in range(1, state.load_P.size):
        if state.load_P[rank] > state.load_P[best]:
            best = rank
    return best


@_inner
def _descend(state: Any, subsets: Any, bound: int) -> Any:
    """Exchange between the peak rank and its best partner until none helps."""
    load_P = state.load_P
    while True:
        peak_rank = _peak_rank(state)
        peak = load_P[peak_rank]
        partner, mine, theirs = -1, 0, 0
        for rank in range(load_P.size):
            if peak <= bound:
                break
            both = load_P[peak_rank] + load_P[rank]
            if (both + 1) // 2 < peak:
                excess, i, j = _best_exchange(state, subsets, peak_rank, rank)
                if (both + excess) // 2 < peak:
                    peak, partner, mine, theirs = (both + excess) // 2, rank, i, j
        if partner < 0:
            return peak
        _exchange(state, subsets, peak_rank, mine, partner, theirs)


@_inner
def _kick(state: Any, subsets: Any, swaps: int) -> None:
    """Swap random experts of random ranks; the first swap is one of the peak rank."""
    num_ranks, per_rank = state.member_PM.shape
    a = _peak_rank(state)
    for _ in range(swaps):
        b = (a + 1 + _below(state, num_ranks - 1)) % num_ranks
        _swap(state, a, _below(state, per_rank), b, _below(state, per_rank))
        _refresh(state, subsets, a)
        _refresh(state, subsets, b)
        a = _below(state, num_ranks)


@_inner
def _copy(source_PM: Any, target_PM: Any, rank: int) -> Any:
    """Copy the members of a rank; return whether that changed anything."""
    changed = False
    for m in range(source_PM.shape[1]):
        changed |= target_PM[rank, m] != source_PM[rank, m]
        target_PM[rank, m] = source_PM[rank, m]
    return changed


@_compiled
def _search(
    state: Any, subsets: Any, best_PM: Any, bound: int, kicks: int, kick_swaps: int
) -> None:
    """Leave the experts on each rank with the smallest peak found in `best_PM`."""
    num_ranks = state.load_P.size
    for rank in range(num_ranks):
        _refresh(state, subsets, rank)
    best = state.load_P[_peak_rank(state)]
    for kick in range(kicks + 1):
        if kick > 0:
            _kick(state, subsets, kick_swaps)
        peak = _descend(state, subsets, bound)
        for rank in range(num_ranks):
            if peak <= best:
                _copy(state.member_PM, best_PM, rank)
            elif _copy(best_PM, state.member_PM, rank):
                _refresh(state, subsets, rank)
        best = min(best, peak)
        if best <= bound:
            break
