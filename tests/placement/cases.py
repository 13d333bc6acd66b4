"""Placement instances for the tests."""

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from rpopt.placement.instance import PlacementInstance

fuzz = settings(deadline=None, max_examples=50)
"""Without a deadline: the first call of the search may compile it."""

TINY = ((1, 1), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (4, 2), (5, 1), (8, 1))
"""Experts per rank and ranks that brute force can do."""


def instance(load_LE: Any, num_ep_ranks: int) -> PlacementInstance:
    return PlacementInstance(load_LE=np.array(load_LE), num_ep_ranks=num_ep_ranks)


@st.composite
def tiny_instances(draw: st.DrawFn) -> PlacementInstance:
    """Instances of every skew: mostly small loads, some ties, some giants."""
    per_rank, ranks = draw(st.sampled_from(TINY))
    load = st.one_of(st.integers(0, 3), st.integers(0, 60), st.integers(0, 10**9))
    layer = st.lists(load, min_size=per_rank * ranks, max_size=per_rank * ranks)
    return instance(draw(st.lists(layer, min_size=1, max_size=3)), ranks)


@st.composite
def instances(draw: st.DrawFn) -> PlacementInstance:
    """Instances of any shape up to 64 experts, with lognormal loads."""
    per_rank, ranks = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    skew = draw(st.sampled_from((0.0, 0.4, 1.0, 2.5)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    load_LE = np.exp(skew * rng.standard_normal((2, per_rank * ranks))) * 1000
    return instance(load_LE.astype(np.int64), ranks)


def lognormal_loads(
    num_experts: int, sigma: float, seed: int, total: int = 1_000_000
) -> Any:
    """Lognormal loads of one layer that sum to a total."""
    rng = np.random.default_rng(seed)
    share_E = np.exp(sigma * rng.standard_normal(num_experts))
    share_E *= total / share_E.sum()
    load_E = share_E.astype(np.int64)
    load_E[np.argsort(load_E - share_E)[: total - load_E.sum()]] += 1
    return load_E
