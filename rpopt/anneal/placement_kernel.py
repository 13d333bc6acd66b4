"""Compiled annealing of one layer's placement: swaps of two experts, priced by group.

An attempt swaps two experts of different EP ranks. For every group it needs the largest
load of the other ranks: the first, second or third largest of all, so the three largest
are kept, and an attempt costs one pass over the groups, however many ranks there are.
Loops over groups are made of minima and maxima only, which the compiler vectorises.
Weights are part of the demand, since a weight times a maximum is the maximum of
weighted loads. Attempt n uses draw n of its key (`rpopt.counter`): 26 bits for each
expert, 12 for the acceptance, which uses the table of -log(u) of `rpopt.anneal.fixed`.

Axis letters: E experts (also places: rank x M + member), G groups, P EP ranks, M
experts per rank, T temperatures, U entries of the table.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rpopt import counter
from rpopt.anneal.fixed import NEGLOG_BITS

_GOLDEN = np.uint64(counter.GOLDEN)
_MIX_1, _MIX_2 = np.uint64(counter.MIX_1), np.uint64(counter.MIX_2)
_12, _26, _27, _30, _31, _38 = (np.uint64(n) for n in (12, 26, 27, 30, 31, 38))
_LOW_26, _LOW_12 = np.uint64(2**26 - 1), np.uint64(2**12 - 1)


class State(NamedTuple):
    """A placement of one layer and what the search keeps about it.

    Parameters
    ----------
    demand_EG
        Weighted demand of each expert in each group.
    place_E
        The expert in each place; places rank x M to rank x M + M - 1 are one EP rank.
    load_PG
        Load of each rank in each group.
    top_3G
        The three largest of them; -1 where there are fewer ranks.
    home_E
        EP rank that each expert has now; -1 where moves are free.
    price
        Price of an expert that is not at home.
    """

    demand_EG: Any
    place_E: Any
    load_PG: Any
    top_3G: Any
    home_E: Any
    price: Any


@njit
def _mix(value: Any) -> Any:
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


@njit
def _find_tops(s: Any) -> None:
    """Find the three largest loads of every group."""
    num_groups, outside = s.load_PG.shape[1], s.top_3G.dtype.type(-1)
    for g in range(num_groups):
        s.top_3G[0, g] = s.top_3G[1, g] = s.top_3G[2, g] = outside
    for p in range(s.load_PG.shape[0]):
        for g in range(num_groups):
            load, first, second = s.load_PG[p, g], s.top_3G[0, g], s.top_3G[1, g]
            s.top_3G[0, g] = max(first, load)
            s.top_3G[1, g] = max(second, min(first, load))
            s.top_3G[2, g] = max(s.top_3G[2, g], min(second, load))


@njit
def _refresh(s: Any) -> Any:
    """Compute all loads and peaks; return the energy."""
    per_rank = s.place_E.size // s.load_PG.shape[0]
    energy = np.int64(0)
    s.load_PG[:] = 0
    for i in range(s.place_E.size):
        e, p = s.place_E[i], i // per_rank
        if s.home_E[e] >= 0 and s.home_E[e] != p:
            energy += s.price
        for g in range(s.load_PG.shape[1]):
            s.load_PG[p, g] += s.demand_EG[e, g]
    _find_tops(s)
    for g in range(s.load_PG.shape[1]):
        energy += s.top_3G[0, g]
    return energy


@njit
def _change_of_moves(s: Any, a: Any, b: Any, p: Any, q: Any) -> Any:
    """Return how many more experts are away once a goes from p to q and b to p."""
    home_a, home_b = s.home_E[a], s.home_E[b]
    away = np.int64(0)
    if home_a >= 0:
        away += np.int64(home_a == p) - np.int64(home_a == q)
    if home_b >= 0:
        away += np.int64(home_b == q) - np.int64(home_b == p)
    return away


@njit
def _change(s: Any, a: Any, b: Any, p: Any, q: Any) -> Any:
    """Return the change of the energy when experts a on p and b on q are swapped."""
    change = np.int64(0)
    for g in range(s.load_PG.shape[1]):
        load_p, load_q, first = s.load_PG[p, g], s.load_PG[q, g], s.top_3G[0, g]
        # By value: where a peak takes part, the next stands in; ties are harmless.
        low, second = min(load_p, load_q), s.top_3G[1, g]
        next_one = s.top_3G[2, g] if low == second else second
        rest = next_one if max(load_p, load_q) == first else first
        moved = s.demand_EG[b, g] - s.demand_EG[a, g]
        change += max(rest, max(load_p + moved, load_q - moved)) - first
    return change + s.price * _change_of_moves(s, a, b, p, q)


@njit
def _swap(s: Any, i: Any, j: Any, p: Any, q: Any) -> None:
    """Swap the experts in places i and j of ranks p and q."""
    a, b = s.place_E[i], s.place_E[j]
    s.place_E[i], s.place_E[j] = b, a
    for g in range(s.load_PG.shape[1]):
        moved = s.demand_EG[b, g] - s.demand_EG[a, g]
        s.load_PG[p, g] += moved
        s.load_PG[q, g] -= moved
    _find_tops(s)


@njit
def _descend(s: Any, energy: Any, rounds: Any) -> Any:
    """Take every swap that helps until none does, or `rounds` passes are over."""
    num_experts = s.place_E.size
    per_rank = num_experts // s.load_PG.shape[0]
    for _ in range(rounds):
        before = energy
        for i in range(num_experts):
            p = i // per_rank
            for j in range((p + 1) * per_rank, num_experts):
                q = j // per_rank
                change = _change(s, s.place_E[i], s.place_E[j], p, q)
                if change < 0:
                    _swap(s, i, j, p, q)
                    energy += change
        if energy == before:
            break
    return energy


@njit(cache=True, nogil=True)
def typical_change(s: Any, key: Any, count: Any) -> Any:
    """Return the mean absolute change of the energy over `count` random swaps."""
    _refresh(s)
    num_experts = s.place_E.size
    per_rank = num_experts // s.load_PG.shape[0]
    total = np.int64(0)
    for n in range(count):
        word = _mix(np.uint64(key) + np.uint64(n) * _GOLDEN)
        i = np.int64(((word >> _38) * np.uint64(num_experts)) >> _26)
        p = i // per_rank
        others = np.uint64(num_experts - per_rank)
        j = np.int64((((word >> _12) & _LOW_26) * others) >> _26)
        if j >= p * per_rank:
            j += per_rank
        total += abs(_change(s, s.place_E[i], s.place_E[j], p, j // per_rank))
    return total // max(1, count)


@njit(cache=True, nogil=True)
def anneal(
    s: Any, temperature_T: Any, attempts: Any, neglog_U: Any, key: Any, rounds: Any
) -> Any:
    """Anneal in place, `attempts` attempts at each temperature; return the energy.

    The best state at the end of a temperature, or after the final descent, is left in
    `s`; its energy is never above that of the start.
    """
    energy = _refresh(s)
    num_experts = s.place_E.size
    per_rank = num_experts // s.load_PG.shape[0]
    others = np.uint64(num_experts - per_rank)
    best, best_E = energy, s.place_E.copy()
    draw = np.uint64(key)
    for t in range(temperature_T.size):
        for _ in range(attempts):
            word = _mix(draw)
            draw += _GOLDEN
            i = np.int64(((word >> _38) * np.uint64(num_experts)) >> _26)
            p = i // per_rank
            j = np.int64((((word >> _12) & _LOW_26) * others) >> _26)
            if j >= p * per_rank:
                j += per_rank
            q = j // per_rank
            change = _change(s, s.place_E[i], s.place_E[j], p, q)
            slack = neglog_U[word & _LOW_12] * temperature_T[t]
            if change <= slack >> NEGLOG_BITS:
                _swap(s, i, j, p, q)
                energy += change
        if energy < best:
            best = energy
            best_E[:] = s.place_E
    energy = _descend(s, energy, rounds)
    if energy <= best:
        return energy
    s.place_E[:] = best_E
    return _descend(s, _refresh(s), rounds)
