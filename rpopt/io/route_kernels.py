"""The compiled loop over expert ids; imported on first use, since numba loads slowly.

Axis letters: T rows (tokens) of one piece, L MoE layers, E experts, K top-k.
"""

from typing import Any

import numba


@numba.njit(cache=True, nogil=True)
def count_ids(
    ids_TLK: Any, layer_L: Any, top_k: int, count_LE: Any, seen_E: Any
) -> bool:
    """Add the copies of every expert to `count_LE`; stop at the first bad row.

    Layer by layer, so that one layer's histogram stays in the first-level cache.

    Parameters
    ----------
    ids_TLK
        Unsigned expert ids; columns after the first `top_k` are ignored.
    layer_L
        Where in `ids_TLK` each MoE layer is.
    seen_E
        Scratch, int64 [E].

    Returns
    -------
    bool
        Whether every row holds `top_k` different ids below E; if not, `count_LE` is
        worthless.
    """
    num_experts = count_LE.shape[1]
    for layer in range(layer_L.size):
        column = layer_L[layer]
        seen_E[:] = -1
        for t in range(ids_TLK.shape[0]):
            for k in range(top_k):
                expert = ids_TLK[t, column, k]
                if expert >= num_experts or seen_E[expert] == t:
                    return False
                seen_E[expert] = t
                count_LE[layer, expert] += 1
    return True
