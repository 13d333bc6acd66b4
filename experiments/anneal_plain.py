"""A plain simulated annealing loop in floats: what the compiled engine is held against.

One chain, compiled by numba, written the direct way: relocations and swaps, the two
touched groups priced in full for every feasible proposal, Metropolis acceptance with
`exp`. It has the compiled engine's relocations and swaps (both pair similar items), so
that a move means the same work, and nothing to exchange cells or groups.

Axis letters: I items, K cells, G groups, L MoE layers, P EP ranks, S shards.
"""

# ruff: noqa: NPY002 (compiled loops know the legacy generator only)

import math
from typing import Any

import numpy as np
from numba import njit

from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout


@njit(nogil=True, cache=True)
def _partner(i: Any, num_items: Any) -> Any:
    reach = (num_items - 1) * 2.0 ** (-np.random.random() * math.log2(num_items))
    distance = 1 + int(np.random.random() * max(1.0, reach))
    return (i + distance if np.random.random() < 0.5 else i - distance) % num_items


@njit(nogil=True, cache=True)
def _chain(
    cell_I: Any,
    weight_I: Any,
    attention_I: Any,
    load_ILP: Any,
    layer_weight_L: Any,
    tokens_K: Any,
    count_K: Any,
    attention_K: Any,
    load_GLP: Any,
    ticks_G: Any,
    shard_S: Any,
    size: Any,
    cap: Any,
    temperature: Any,
    moves: Any,
    seed: Any,
) -> Any:
    np.random.seed(seed)
    num_items, num_cells, num_shards = cell_I.size, tokens_K.size, shard_S.size
    layers, ranks = load_ILP.shape[1], load_ILP.shape[2]
    slowest = shard_S.max()
    for n in range(moves):
        i, j = np.random.randint(num_items), -1
        c1 = cell_I[i]
        if n % 8 == 0:
            c2 = np.random.randint(num_cells)
            tokens, attention = weight_I[i], attention_I[i]
            if count_K[c1] < 2:
                continue
        else:
            j = _partner(i, num_items)
            c2 = cell_I[j]
            tokens = weight_I[i] - weight_I[j]
            attention = attention_I[i] - attention_I[j]
        if c1 == c2 or tokens_K[c2] + tokens > cap or tokens_K[c1] - tokens > cap:
            continue
        g1, g2 = c1 // size, c2 // size
        attention_K[c1] -= attention
        attention_K[c2] += attention
        new1, new2 = 0.0, 0.0
        for k in range(size):
            new1 = max(new1, attention_K[g1 * size + k])
            new2 = max(new2, attention_K[g2 * size + k])
        for layer in range(layers):
            peak1, peak2 = 0.0, 0.0
            for q in range(ranks):
                load = load_ILP[i, layer, q]
                if j >= 0:
                    load -= load_ILP[j, layer, q]
                if g1 == g2:
                    load = 0.0
                peak1 = max(peak1, load_GLP[g1, layer, q] - load)
                peak2 = max(peak2, load_GLP[g2, layer, q] + load)
            new1 += layer_weight_L[layer] * peak1
            new2 += layer_weight_L[layer] * peak2
        s1, s2 = g1 % num_shards, g2 % num_shards
        old1, old2 = shard_S[s1], shard_S[s2]
        shard_S[s1] += new1 - ticks_G[g1]
        if g1 != g2:
            shard_S[s2] += new2 - ticks_G[g2]
        new = shard_S.max()
        if new > slowest and np.random.random() >= math.exp(
            (slowest - new) / temperature
        ):
            shard_S[s2] = old2
            shard_S[s1] = old1
            attention_K[c1] += attention
            attention_K[c2] -= attention
            continue
        slowest = new
        ticks_G[g1], ticks_G[g2] = new1, new2
        tokens_K[c1] -= tokens
        tokens_K[c2] += tokens
        if g1 != g2:
            for layer in range(layers):
                for q in range(ranks):
                    load = load_ILP[i, layer, q]
                    if j >= 0:
                        load -= load_ILP[j, layer, q]
                    load_GLP[g1, layer, q] -= load
                    load_GLP[g2, layer, q] += load
        cell_I[i] = c2
        if j >= 0:
            cell_I[j] = c1
        else:
            count_K[c1] -= 1
            count_K[c2] += 1
    return slowest


class PlainChain:
    """One chain of an instance with one attention class and coupling "step"."""

    def __init__(self, instance: LayoutInstance, layout: Layout) -> None:
        shards, size, unit = (
            instance.num_shards,
            instance.shard_size,
            instance.unit_ticks,
        )
        order_I = np.argsort(instance.attention_ticks_IC.sum(axis=1), kind="stable")
        position_D = np.argsort(np.argsort(instance.shard_of_rank_D, kind="stable"))
        cell_I = layout.row_I * instance.num_ranks + position_D[layout.rank_I]
        cell_I = cell_I[order_I]
        weight_I = instance.weight_I[order_I]
        attention_I = instance.attention_ticks_IC.sum(axis=1)[order_I] / unit
        load_ILP = instance.load_ILP[order_I].astype(np.float64)
        layer_weight_L = instance.layer_weight_ticks_L / unit
        cells = instance.num_cells
        attention_K = np.bincount(cell_I, attention_I, cells)
        load_GLP = np.zeros((instance.num_groups, *load_ILP.shape[1:]))
        np.add.at(load_GLP, cell_I // size, load_ILP)
        ticks_G = attention_K.reshape(-1, size).max(axis=1)
        ticks_G += load_GLP.max(axis=2) @ layer_weight_L
        self._arguments = (
            cell_I,
            weight_I,
            attention_I,
            load_ILP,
            layer_weight_L,
            np.bincount(cell_I, weight_I, cells).astype(np.int64),
            np.bincount(cell_I, minlength=cells),
            attention_K,
            load_GLP,
            ticks_G,
            ticks_G.reshape(-1, shards).sum(axis=0),
            size,
            instance.token_cap,
        )

    def run(self, temperature: float, moves: int, seed: int) -> float:
        """Attempt moves; return J without the offset."""
        return float(_chain(*self._arguments, temperature, moves, seed))
