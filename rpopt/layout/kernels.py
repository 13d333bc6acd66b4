"""Compiled loops over sets of items; a set is a whole number, bit i for item i.

Imported on first use only, since numba takes a while to load; the compiled code is
cached on disk.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, H cells of a
group, Z sets of items (an array over all of them, unless it lists some).
"""

from typing import Any

import numba
import numpy as np

compiled = numba.njit(cache=True, nogil=True)


@compiled
def expert_ticks(load_ILP: Any, weight_L: Any, load_LP: Any, expert_Z: Any) -> None:
    """Compute what the expert peaks of every set cost, one item in or out at a time.

    `load_LP` holds the loads of the current set; it starts at zero.
    """
    for step in range(1, expert_Z.size):
        chosen = step ^ (step >> 1)  # Gray code
        item, sign = 0, -1
        while not (step >> item) & 1:
            item += 1
        if (chosen >> item) & 1:
            sign = 1
        ticks = 0
        for layer in range(weight_L.size):
            peak = 0
            for q in range(load_LP.shape[1]):
                load_LP[layer, q] += sign * load_ILP[item, layer, q]
                peak = max(peak, load_LP[layer, q])
            ticks += peak * weight_L[layer]
        expert_Z[chosen] = ticks


@compiled
def split(first_Z: Any, second_Z: Any, items: int, add: bool, limit: int) -> Any:
    """Return the least cost below a limit of a set in two parts, and the first part.

    The cost is the sum of the parts' costs, or the larger one. Parts can be exchanged,
    so the first one holds the first item.
    """
    rest = items & (items - 1)
    sub, best, part = rest, limit, 0
    while sub:
        sub = (sub - 1) & rest
        cost = first_Z[items ^ rest ^ sub]
        if cost < best:
            other = second_Z[rest ^ sub]
            cost = cost + other if add else max(cost, other)
            if cost < best:
                best, part = cost, items ^ rest ^ sub
    return best, part


@compiled
def combine(
    first_Z: Any, second_Z: Any, sets_Z: Any, add: bool, limit: int, cost_Z: Any
) -> None:
    """Compute the least cost of each listed set in two parts, where below the limit."""
    for number in sets_Z:
        items: Any = np.int64(number)
        best, part = split(first_Z, second_Z, items, add, limit)
        if part:
            cost_Z[items] = best


@compiled
def spread(
    attention_CZ: Any,
    fits_Z: Any,
    items: int,
    cells: int,
    limit: int,
    peak_HC: Any,
    cell_H: Any,
    best_H: Any,
) -> Any:
    """Return the least attention below a limit of a set over so many cells.

    That is the sum over classes of the largest cell. Row `cells` of `peak_HC` holds the
    peaks of cells filled before, `cell_H` those cells; `best_H` receives the best ones.
    """
    rest = items & (items - 1)
    sub, best = rest, limit
    while cells == 1 or sub:
        sub = rest if cells == 1 else (sub - 1) & rest
        cell = items ^ rest ^ sub
        ticks = 0
        for c in range(attention_CZ.shape[0]):
            peak_HC[cells - 1, c] = max(peak_HC[cells, c], attention_CZ[c, cell])
            ticks += peak_HC[cells - 1, c]
        if fits_Z[cell] and ticks < best:
            cell_H[cells - 1] = cell
            if cells > 1:
                best = spread(
                    attention_CZ, fits_Z, rest ^ sub, cells - 1, best,
                    peak_HC, cell_H, best_H,
                )  # fmt: skip
            else:
                best = ticks
                best_H[:] = cell_H
        if cells == 1:
            break
    return best


@compiled
def spread_all(
    attention_CZ: Any, fits_Z: Any, sets_Z: Any, cells: int, limit: int, cost_Z: Any
) -> Any:
    """Compute `spread` of each listed set, where below the limit.

    Returns the cells of the last set, [H].
    """
    peak_HC = np.zeros((cells + 1, attention_CZ.shape[0]), np.int64)
    cell_H = np.zeros(cells, np.int64)
    best_H = np.zeros(cells, np.int64)
    for number in sets_Z:
        items: Any = np.int64(number)  # one type in all of the recursion
        best = spread(
            attention_CZ, fits_Z, items, cells, limit, peak_HC, cell_H, best_H
        )
        if best < limit:
            cost_Z[items] = best
    return best_H
