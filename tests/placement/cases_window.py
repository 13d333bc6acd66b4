"""Window placement instances for the tests, and brute force over small ones."""

from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rpopt.placement.instance_window import WindowPlacementInstance
from tests.oracle.placement import partitions


def window_instance(
    demand_GLE: Any, num_ep_ranks: int, weight_G: Any = None
) -> WindowPlacementInstance:
    return WindowPlacementInstance(
        demand_GLE=np.array(demand_GLE), num_ep_ranks=num_ep_ranks, weight_G=weight_G
    )


def random_instance(
    seed: int,
    *,
    groups: int = 3,
    layers: int = 2,
    per_rank: int = 2,
    ranks: int = 3,
    weights: bool = True,
) -> WindowPlacementInstance:
    rng = np.random.default_rng(seed)
    demand = 10 ** rng.uniform(0, 2, (groups, layers, per_rank * ranks)) - 1
    weight_G = rng.integers(0, 4, groups) if weights else None
    return window_instance(demand.astype(np.int64), ranks, weight_G)


@st.composite
def window_instances(draw: st.DrawFn) -> WindowPlacementInstance:
    """Every shape up to 16 experts: one group, one rank, one expert per rank."""
    return random_instance(
        draw(st.integers(0, 2**32)),
        groups=draw(st.integers(1, 5)),
        per_rank=draw(st.integers(1, 4)),
        ranks=draw(st.integers(1, 4)),
        weights=draw(st.booleans()),
    )


def optimal_total(
    instance: WindowPlacementInstance,
    layer: int,
    home_E: Any = None,
    max_moves: int = 0,
) -> int:
    """The smallest weighted sum of peaks of one layer, by plain enumeration."""
    demand_GE = instance.weighted_GLE[:, layer].tolist()
    num_experts, ranks = len(demand_GE[0]), instance.num_ep_ranks
    if home_E is None:
        choices = partitions(range(num_experts), num_experts // ranks)
        return min(_total(demand_GE, parts) for parts in choices)
    return min(
        _total(demand_GE, parts)
        for parts in named_partitions(list(range(num_experts)), num_experts // ranks)
        if sum(home_E[e] != p for p, part in enumerate(parts) for e in part)
        <= max_moves
    )


def named_partitions(experts: list[int], size: int) -> Any:
    """Every way to give experts to ranks with names, `size` each."""
    if not experts:
        yield []
        return
    for part in combinations(experts, size):
        left = [e for e in experts if e not in part]
        for tail in named_partitions(left, size):
            yield [part, *tail]


def _total(demand_GE: list[list[int]], parts: Any) -> int:
    return sum(
        max(sum(demand_E[e] for e in part) for part in parts) for demand_E in demand_GE
    )
