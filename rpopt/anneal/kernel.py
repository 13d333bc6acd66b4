"""The compiled engine's loop: the moves of `rpopt.anneal.moves`, replica by replica.

The cost of an attempt hardly depends on the numbers of items and rows: only the two
touched groups are priced, and an attempt is refused as soon as a lower bound of its
energy is too high. Items of a cell form a linked list, so that whole cells can be
priced and moved.

Functions take plain arrays and make no views inside the loop: the compiler counts
references to views, which would cost more than the arithmetic. All compiled code is in
this file, as the cache on disk looks for changes in one file only.

Axis letters: as in `rpopt.anneal.tables`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from rpopt import counter
from rpopt.anneal.fixed import NEGLOG_BITS
from rpopt.anneal.moves import Kind
from rpopt.records import Int64Array, IntArray

_GOLDEN = np.uint64(counter.GOLDEN)
_MIX_1, _MIX_2 = np.uint64(counter.MIX_1), np.uint64(counter.MIX_2)
_1, _6, _26 = (np.uint64(n) for n in (1, 6, 26))
_27, _30, _31, _32, _52 = (np.uint64(n) for n in (27, 30, 31, 32, 52))
_LOW = np.uint64(2**32 - 1)
_RELOCATE, _CELLS = int(Kind.RELOCATE), int(Kind.CELLS)


class State(NamedTuple):
    """A population: cells of items, and what is known of cells, groups and entries.

    `next_BI` and `head_BK` link the items of each cell; -1 ends a list. `sums_B2` holds
    the energy and the ticks of all groups.
    """

    cell_BI: IntArray
    next_BI: IntArray
    head_BK: IntArray
    size_BKH: Int64Array
    attention_BKC: Int64Array
    load_BGX: IntArray
    expert_BG: Int64Array
    ticks_BG: Int64Array
    entry_BV: Int64Array
    sums_B2: Int64Array


@njit
def _mix(value: Any) -> Any:
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


@njit
def _below(word: Any, bound: Any) -> Any:
    return np.int64((word * np.uint64(bound)) >> _32)


@njit
def _other(word: Any, bound: Any, chosen: Any) -> Any:
    value = _below(word, bound - 1)
    return value + 1 if value >= chosen else value


@njit
def _near(item: Any, word: Any, num_items: Any, bits: Any) -> Any:
    scale = np.int64((word >> _1) & _31) * bits >> 5
    reach = max(1, (num_items - 1) >> scale)
    distance = 1 + np.int64(((word >> _6) * np.uint64(reach)) >> _26)
    if word & _1:
        distance = num_items - distance
    item += distance
    return item - num_items if item >= num_items else item


def _unrolled(ranks: Any) -> Any:
    """Return the pricing loop for a fixed number of EP ranks, kept in registers."""

    @njit
    def price(
        load_GX: Any, group_1: Any, group_2: Any, delta_X: Any, weight_L: Any
    ) -> Any:
        layers, small = weight_L.size, delta_X.dtype.type
        ticks_1 = ticks_2 = np.int64(0)
        for layer in range(layers):
            change = delta_X[layer]
            peak_1 = small(load_GX[group_1, layer] + change)
            peak_2 = small(load_GX[group_2, layer] - change)
            for q in range(1, ranks):
                x = q * layers + layer
                peak_1 = max(peak_1, small(load_GX[group_1, x] + delta_X[x]))
                peak_2 = max(peak_2, small(load_GX[group_2, x] - delta_X[x]))
            ticks_1 += np.int64(peak_1) * np.int64(weight_L[layer])
            ticks_2 += np.int64(peak_2) * np.int64(weight_L[layer])
        return ticks_1, ticks_2

    return price


def _folding(ranks: Any) -> Any:
    """Return a loop that raises peaks by the loads of `ranks` EP ranks from `first`."""

    @njit
    def fold(
        load_GX: Any, group_1: Any, group_2: Any, delta_X: Any, first: Any, peak_2L: Any
    ) -> Any:
        layers, small = peak_2L.shape[1], delta_X.dtype.type
        for layer in range(layers):
            top_1, top_2 = peak_2L[0, layer], peak_2L[1, layer]
            for q in range(ranks):
                x = (first + q) * layers + layer
                top_1 = max(top_1, small(load_GX[group_1, x] + delta_X[x]))
                top_2 = max(top_2, small(load_GX[group_2, x] - delta_X[x]))
            peak_2L[0, layer], peak_2L[1, layer] = top_1, top_2

    return fold


_price_2, _price_4, _price_8 = _unrolled(2), _unrolled(4), _unrolled(8)
_fold_1, _fold_8 = _folding(1), _folding(8)


@njit
def _price(
    load_GX: Any,
    group_1: Any,
    group_2: Any,
    delta_X: Any,
    weight_L: Any,
    ranks: Any,
    peak_2L: Any,
) -> Any:
    """Return the expert ticks of two groups after group 1 gains, and 2 loses, loads."""
    if ranks == 8:
        return _price_8(load_GX, group_1, group_2, delta_X, weight_L)
    if ranks == 4:
        return _price_4(load_GX, group_1, group_2, delta_X, weight_L)
    if ranks == 2:
        return _price_2(load_GX, group_1, group_2, delta_X, weight_L)
    peak_2L[:] = 0
    whole = ranks - ranks % 8
    for first in range(0, whole, 8):
        _fold_8(load_GX, group_1, group_2, delta_X, first, peak_2L)
    for first in range(whole, ranks):
        _fold_1(load_GX, group_1, group_2, delta_X, first, peak_2L)
    ticks_1 = ticks_2 = np.int64(0)
    for layer in range(weight_L.size):
        ticks_1 += np.int64(peak_2L[0, layer]) * np.int64(weight_L[layer])
        ticks_2 += np.int64(peak_2L[1, layer]) * np.int64(weight_L[layer])
    return ticks_1, ticks_2


@njit
def _attention(
    attention_KC: Any,
    first: Any,
    size: Any,
    cell_1: Any,
    new_1_C: Any,
    cell_2: Any,
    new_2_C: Any,
) -> Any:
    """Return the attention ticks of a group of cells once two cells have new sums."""
    ticks = 0
    for c in range(new_1_C.size):
        peak = 0
        for k in range(first, first + size):
            value = attention_KC[k, c]
            if k == cell_1:
                value = new_1_C[c]
            if k == cell_2:
                value = new_2_C[c]
            peak = max(peak, value)
        ticks += peak
    return ticks


@njit
def _slowest(
    entry_V: Any,
    peak_R: Any,
    shards: Any,
    v_1: Any,
    change_1: Any,
    v_2: Any,
    change_2: Any,
) -> Any:
    """Return by how much the sum of the parts' peaks grows if two entries change."""
    part_1, part_2 = v_1 // shards, v_2 // shards
    growth = -peak_R[part_1]
    for part in (part_1, part_2):
        peak = 0
        for v in range(part * shards, part * shards + shards):
            value = entry_V[v]
            if v == v_1:
                value += change_1
            if v == v_2:
                value += change_2
            peak = max(peak, value)
        growth += peak
        if part_1 == part_2:
            return growth
    return growth - peak_R[part_2]


@njit
def _find_peaks(entry_V: Any, shards: Any, peak_R: Any) -> Any:
    for part in range(peak_R.size):
        peak = 0
        for v in range(part * shards, part * shards + shards):
            peak = max(peak, entry_V[v])
        peak_R[part] = peak


@njit
def _volume(size_KH: Any, first: Any, size: Any) -> Any:
    volume = 0
    for k in range(first, first + size):
        volume += size_KH[k, 3]
    return volume


@njit
def _move(
    cell_I: Any, next_I: Any, head_K: Any, item: Any, source: Any, target: Any
) -> Any:
    """Take an item out of its cell's list and put it first in another."""
    before = np.int64(head_K[source])
    if before == item:
        head_K[source] = next_I[item]
    else:
        while next_I[before] != item:
            before = np.int64(next_I[before])
        next_I[before] = next_I[item]
    next_I[item] = head_K[target]
    head_K[target] = item
    cell_I[item] = target


@njit
def _exchange(
    cell_I: Any, next_I: Any, head_K: Any, size_KH: Any, cell_1: Any, cell_2: Any
) -> Any:
    """Exchange the items of two cells."""
    for source, target in ((cell_1, cell_2), (cell_2, cell_1)):
        item = np.int64(head_K[source])
        while item >= 0:
            cell_I[item] = target
            item = np.int64(next_I[item])
    head_K[cell_1], head_K[cell_2] = head_K[cell_2], head_K[cell_1]
    for x in range(size_KH.shape[1]):
        size_KH[cell_1, x], size_KH[cell_2, x] = size_KH[cell_2, x], size_KH[cell_1, x]


@njit
def _add_items(load_IX: Any, next_I: Any, item: Any, sign: Any, delta_X: Any) -> Any:
    """Add the loads of a list of items."""
    while item >= 0:
        for x in range(delta_X.size):
            delta_X[x] += sign * load_IX[item, x]
        item = np.int64(next_I[item])


@njit(nogil=True, cache=True)
def run(
    t: Any,
    s: Any,
    key_B: Any,
    lo: Any,
    hi: Any,
    temperature: Any,
    first: Any,
    count: Any,
    accepted_M: Any,
) -> Any:
    """Attempt moves `first` to `first + count` in replicas `lo` to `hi`.

    `accepted_M` counts accepted moves per kind.
    """
    size_IH, attention_IC, load_IX = t.size_IH, t.attention_IC, t.load_IX
    group_K, entry_G = t.group_K, t.entry_G
    neglog_U, pattern, weight_L = t.neglog_U, t.pattern, t.layer_weight_L
    size, shards, ranks = t.shard_size, t.num_shards, t.num_ep_ranks
    token_cap, sample_limit, mean_shift = t.token_cap, t.sample_limit, t.mean_shift
    num_items, num_cells = s.cell_BI.shape[1], s.head_BK.shape[1]
    num_groups, classes = s.ticks_BG.shape[1], attention_IC.shape[1]
    bits = 1
    while (num_items - 1) >> bits:
        bits += 1
    delta_X = np.zeros_like(s.load_BGX[0, 0])
    peak_2L = np.zeros((2, weight_L.size), delta_X.dtype)
    new_1_C, new_2_C = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    peak_R = np.zeros(s.entry_BV.shape[1] // shards, np.int64)
    for b in range(lo, hi):
        cell_I, next_I, head_K = s.cell_BI[b], s.next_BI[b], s.head_BK[b]
        size_KH, attention_KC = s.size_BKH[b], s.attention_BKC[b]
        load_GX, expert_G, ticks_G = s.load_BGX[b], s.expert_BG[b], s.ticks_BG[b]
        entry_V, key = s.entry_BV[b], key_B[b]
        energy, total = s.sums_B2[b, 0], s.sums_B2[b, 1]
        _find_peaks(entry_V, shards, peak_R)
        for n in range(first, first + count):
            slowest = energy - (total >> mean_shift)
            base = key + np.uint64(2 * n) * _GOLDEN
            word_1, word_2 = _mix(base), _mix(base + _GOLDEN)
            high, low = word_1 >> _32, word_1 & _LOW
            surprise = np.int64(neglog_U[word_2 >> _52])
            limit = energy + ((surprise * temperature) >> NEGLOG_BITS)
            kind = pattern[n % pattern.size]

            if kind == _CELLS:
                if num_groups == 1:
                    continue
                cell_1 = _below(high, num_cells)
                group_1 = group_K[cell_1]
                group_2 = _other(low, num_groups, group_1)
                cell_2 = group_2 * size + _below(word_2 & _LOW, size)
                for c in range(classes):
                    new_1_C[c] = attention_KC[cell_2, c]
                    new_2_C[c] = attention_KC[cell_1, c]
                volume = size_KH[cell_2, 3] - size_KH[cell_1, 3]
            else:
                i, j = _below(high, num_items), num_items
                cell_1 = np.int64(cell_I[i])
                if kind == _RELOCATE:
                    if num_cells == 1:
                        continue
                    cell_2 = _other(low, num_cells, cell_1)
                else:
                    j = _near(i, low, num_items, bits)
                    cell_2 = np.int64(cell_I[j])
                    if cell_1 == cell_2:
                        continue
                tokens = size_IH[i, 0] - size_IH[j, 0]
                samples = size_IH[i, 1] - size_IH[j, 1]
                if (
                    size_KH[cell_1, 0] - tokens > token_cap
                    or size_KH[cell_2, 0] + tokens > token_cap
                    or size_KH[cell_1, 1] - samples > sample_limit
                    or size_KH[cell_2, 1] + samples > sample_limit
                    or size_KH[cell_1, 2] == size_IH[i, 2] - size_IH[j, 2]
                ):
                    continue
                for c in range(classes):
                    change = attention_IC[j, c] - attention_IC[i, c]
                    new_1_C[c] = attention_KC[cell_1, c] + change
                    new_2_C[c] = attention_KC[cell_2, c] - change
                group_1, group_2 = group_K[cell_1], group_K[cell_2]
                volume = size_IH[j, 3] - size_IH[i, 3]
            first_1, first_2 = group_1 * size, group_2 * size
            ticks_1 = _attention(
                attention_KC, first_1, size, cell_1, new_1_C, cell_2, new_2_C
            )
            ticks_2 = _attention(
                attention_KC, first_2, size, cell_1, new_1_C, cell_2, new_2_C
            )
            expert_1, expert_2 = expert_G[group_1], expert_G[group_2]
            if group_1 != group_2:
                # Experts cost at least what perfect balance would.
                least_1 = ticks_1 + _volume(size_KH, first_1, size) + volume
                least_2 = ticks_2 + _volume(size_KH, first_2, size) - volume
                change_1 = least_1 - ticks_G[group_1]
                change_2 = least_2 - ticks_G[group_2]
                growth = _slowest(
                    entry_V, peak_R, shards,
                    entry_G[group_1], change_1, entry_G[group_2], change_2,
                )  # fmt: skip
                mean = (total + change_1 + change_2) >> mean_shift
                if slowest + growth + mean > limit:
                    continue
                if kind == _CELLS:
                    delta_X[:] = 0
                    _add_items(load_IX, next_I, np.int64(head_K[cell_2]), 1, delta_X)
                    _add_items(load_IX, next_I, np.int64(head_K[cell_1]), -1, delta_X)
                else:
                    for x in range(delta_X.size):
                        delta_X[x] = load_IX[j, x] - load_IX[i, x]
                expert_1, expert_2 = _price(
                    load_GX, group_1, group_2, delta_X, weight_L, ranks, peak_2L
                )
            ticks_1 += expert_1
            ticks_2 += expert_2

            change_1 = ticks_1 - ticks_G[group_1]
            change_2 = ticks_2 - ticks_G[group_2] if group_1 != group_2 else 0
            growth = _slowest(
                entry_V, peak_R, shards,
                entry_G[group_1], change_1, entry_G[group_2], change_2,
            )  # fmt: skip
            mean = (total + change_1 + change_2) >> mean_shift
            if slowest + growth + mean > limit:
                continue

            accepted_M[kind] += 1
            energy = slowest + growth + mean
            total += change_1 + change_2
            entry_V[entry_G[group_1]] += change_1
            entry_V[entry_G[group_2]] += change_2
            _find_peaks(entry_V, shards, peak_R)
            ticks_G[group_1], ticks_G[group_2] = ticks_1, ticks_2
            expert_G[group_1], expert_G[group_2] = expert_1, expert_2
            if group_1 != group_2:
                for x in range(delta_X.size):
                    load_GX[group_1, x] += delta_X[x]
                    load_GX[group_2, x] -= delta_X[x]
            for c in range(classes):
                attention_KC[cell_1, c] = new_1_C[c]
                attention_KC[cell_2, c] = new_2_C[c]
            if kind == _CELLS:
                _exchange(cell_I, next_I, head_K, size_KH, cell_1, cell_2)
                continue
            _move(cell_I, next_I, head_K, i, cell_1, cell_2)
            if j < num_items:
                _move(cell_I, next_I, head_K, j, cell_2, cell_1)
            for x in range(4):
                change = size_IH[j, x] - size_IH[i, x]
                size_KH[cell_1, x] += change
                size_KH[cell_2, x] -= change
        s.sums_B2[b, 0], s.sums_B2[b, 1] = energy, total
