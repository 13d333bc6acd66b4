"""Brute force for placement: every partition of the experts of one layer."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from rpopt.placement.instance import PlacementInstance


def partitions(experts: Sequence[int], size: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to part experts into sets of one size; sets are unordered."""
    if not experts:
        yield []
        return
    first, *rest = experts
    for others in combinations(rest, size - 1):
        left = [e for e in rest if e not in others]
        for tail in partitions(left, size):
            yield [(first, *others), *tail]


def optimal_peak(load_E: Sequence[int], num_ep_ranks: int) -> int:
    """The smallest peak of one layer."""
    per_rank = len(load_E) // num_ep_ranks
    return min(
        max(sum(int(load_E[e]) for e in rank) for rank in parts)
        for parts in partitions(range(len(load_E)), per_rank)
    )


def optimal_peaks(instance: PlacementInstance) -> npt.NDArray[np.int64]:
    """The smallest peak of every layer, [L]."""
    return np.array(
        [optimal_peak(load_E, instance.num_ep_ranks) for load_E in instance.load_LE]
    )
