"""Small packing instances for tests."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from rpopt.packing.instance import PackingInstance


def make(weights: list[int], capacity: int, **more: Any) -> PackingInstance:
    return PackingInstance(weight_I=np.array(weights), capacity=capacity, **more)


def tiny(seed: int, max_items: int = 9) -> PackingInstance:
    """An instance that brute force solves: plain, with bundles, or with a limit."""
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, rng.choice([8, 30, 100]) + 1))
    num_items = int(rng.integers(1, max_items + 1))
    low = int(rng.integers(1, capacity + 1))
    more: dict[str, Any] = {}
    if rng.random() < 0.4:
        more["num_samples_I"] = rng.integers(1, 4, num_items)
    if rng.random() < 0.5:
        more["max_samples_per_cell"] = int(rng.integers(3, 6))
    return PackingInstance(
        weight_I=rng.integers(low, capacity + 1, num_items),
        capacity=capacity,
        num_ranks=int(rng.integers(1, 4)),
        row_multiple=int(rng.integers(1, 3)),
        **more,
    )


@st.composite
def instances(draw: st.DrawFn, max_items: int = 40) -> PackingInstance:
    """Any instance of up to `max_items` items."""
    capacity = draw(st.integers(1, 10_000))
    weights = draw(st.lists(st.integers(1, capacity), min_size=1, max_size=max_items))
    samples = draw(
        st.lists(st.integers(1, 4), min_size=len(weights), max_size=len(weights))
    )
    return make(
        weights,
        capacity,
        num_samples_I=np.array(samples),
        max_samples_per_cell=draw(st.none() | st.integers(4, 12)),
        num_ranks=draw(st.integers(1, 5)),
        row_multiple=draw(st.integers(1, 3)),
    )
