"""Knots: values of item types as piecewise linear functions of their weight.

Axis letters: K item types, M knots.
"""

from typing import Any

import numpy as np

from rpopt.exact.item_types import ItemTypes
from rpopt.highs.linear import FloatArray
from rpopt.records import Int64Array


def first_knots(types: ItemTypes, num_knots: int) -> Int64Array:
    """Return knots at quantiles of the items' weights, increasing.

    What an item is worth depends on what fits beside it, so there are also knots at
    what these weights leave of the capacity, and around one half and one third of it.
    """
    weight_I = np.repeat(types.weight_K[::-1], types.demand_K[::-1])
    places = np.linspace(0, weight_I.size - 1, num_knots).round().astype(np.int64)
    half, third = types.capacity // 2, types.capacity // 3
    special = [half, half + 1, third, third + 1]
    knot_M = np.concatenate([weight_I[places], special])
    knot_M = np.concatenate([knot_M, types.capacity - knot_M])
    inside = (knot_M >= weight_I[0]) & (knot_M <= weight_I[-1])
    return np.unique(knot_M[inside])


def refined_knots(
    types: ItemTypes, knot_M: Int64Array, excess_K: FloatArray
) -> Int64Array:
    """Return more knots, where the master problem packs the wrong items of an interval.

    Parameters
    ----------
    types
        The item types.
    knot_M
        The knots of a master problem.
    excess_K
        Items of each type that its solution packs beyond the demand. Between two knots
        they may be traded off; a new knot is put where that is exploited most.
    """
    weight_K = types.weight_K[::-1].astype(np.float64)
    excess_K = excess_K[::-1]
    cut_M1 = np.searchsorted(weight_K, knot_M)
    gains, new = [], []
    for m in range(knot_M.size - 1):
        span = slice(int(cut_M1[m]) + 1, int(cut_M1[m + 1]))
        inner = weight_K[span]
        if inner.size == 0:
            continue
        low, high = float(knot_M[m]), float(knot_M[m + 1])
        rise = (inner - low) / (inner[:, None] - low)
        fall = (high - inner) / (high - inner[:, None])
        gain = -np.minimum(rise, fall) @ excess_K[span]
        best = int(np.abs(gain).argmax())
        gains.append(abs(float(gain[best])))
        new.append(int(inner[best]))
    order = np.argsort(-np.array(gains))[: knot_M.size]
    chosen = np.array(new, dtype=np.int64)[order]
    mirrored = types.capacity - chosen
    inside = (mirrored >= weight_K[0]) & (mirrored <= weight_K[-1])
    return np.union1d(knot_M, np.concatenate([chosen, mirrored[inside]]))


def shares(types: ItemTypes, knot_M: Int64Array | None) -> Any:
    """Return the share of each knot in the value of each type, sparse (K, M).

    Without knots each type has a value of its own.
    """
    from scipy.sparse import csr_array, eye_array

    if knot_M is None:
        return eye_array(types.num_types, format="csr")
    if knot_M.size < 2:
        return csr_array(np.ones((types.num_types, 1)))
    left_K = np.searchsorted(knot_M, types.weight_K, side="right") - 1
    left_K = np.clip(left_K, 0, knot_M.size - 2)
    share_K = (types.weight_K - knot_M[left_K]) / np.diff(knot_M)[left_K]
    rows = np.tile(np.arange(types.num_types), 2)
    cols = np.concatenate([left_K, left_K + 1])
    data = np.concatenate([1 - share_K, share_K])
    used = data > 1e-9
    shape = (types.num_types, knot_M.size)
    return csr_array((data[used], (rows[used], cols[used])), shape=shape)
