"""Even parts by the largest differencing method, shared by packing and layout.

Axis letters: I items.
"""

import heapq

import numpy as np

from rpopt.records import Int64Array


def largest_differencing(cost_I: Int64Array, num_parts: int) -> Int64Array:
    """Return the part of each item by the largest differencing method.

    A partial partition is a list of parts, dearest first, each known by one of its
    items. The two partitions of the largest spread are joined, the dearest parts of one
    with the cheapest of the other, until one is left. There are `num_parts` parts,
    none of them empty, when there are as many items.

    Notes
    -----
    N. Karmarkar and R. Karp, "The differencing method of set partitioning" (1982), for
    several parts as in W. Michiels, J. Korst and E. Aarts, "Performance ratios for the
    Karmarkar-Karp differencing method" (2003).
    """
    member_of_I = np.arange(cost_I.size)
    heap = [
        (-cost, item, np.array([cost]), np.array([item]))
        for item, cost in enumerate(cost_I.tolist())
    ]
    heapq.heapify(heap)
    for tie in range(cost_I.size, 2 * cost_I.size - 1):
        _, _, cost_a, item_a = heapq.heappop(heap)
        _, _, cost_b, item_b = heapq.heappop(heap)
        size = min(num_parts, cost_a.size + cost_b.size)
        cost, item = np.zeros(size, dtype=np.int64), np.empty(size, dtype=np.int64)
        cost[: cost_a.size], item[: cost_a.size] = cost_a, item_a
        cost[size - cost_b.size :] += cost_b[::-1]
        alone = size - cost_a.size
        met = cost_b.size - alone
        item[cost_a.size :] = item_b[:alone][::-1]
        member_of_I[item_b[alone:][::-1]] = item[size - cost_b.size :][:met]
        order = np.argsort(-cost, kind="stable")
        spread = cost.max() - (cost.min() if size == num_parts else 0)
        heapq.heappush(heap, (-int(spread), tie, cost[order], item[order]))
    while np.any(member_of_I != member_of_I[member_of_I]):
        member_of_I = member_of_I[member_of_I]
    return np.unique(member_of_I, return_inverse=True)[1]
