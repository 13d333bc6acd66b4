"""Dives: what is left can always be covered, and budgets are kept."""

import time

import numpy as np

from rpopt.exact.diving import Dive, relax
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.packer import Packer
from rpopt.packing.instance import PackingInstance

DEADLINE_S = 60


def test_what_is_left_has_a_relaxation_although_no_known_pattern_fits() -> None:
    types = ItemTypes.of(PackingInstance(weight_I=np.array([5, 4, 3]), capacity=12))
    whole = [np.array([0, 1, 2])]  # the only pattern of the pool
    with Packer(types, whole, time.monotonic() + DEADLINE_S) as packer:
        dive = Dive(residual_K=types.demand_K, budget=2)
        dive.fix(np.array([1, 0, 0]))
        deadline_s = time.monotonic() + DEADLINE_S
        found = relax(packer.master, packer.knapsack, dive, deadline_s, None)
    assert found.point is not None
    assert found.bound.cells == 1


def test_a_dive_packs_many_items_of_few_types_within_the_bound() -> None:
    rng = np.random.default_rng(0)
    weight_I = rng.integers(64, 129, 1500)
    types = ItemTypes.of(PackingInstance(weight_I=weight_I, capacity=256))
    start = types.first_fit(types.demand_K, types.demand_K.sum())
    assert start is not None
    with Packer(types, start, time.monotonic() + DEADLINE_S) as packer:
        lower = packer.bound(len(start)).cells
        cells = packer.dive(lower, rng)
    assert cells is not None
    assert len(cells) == lower < len(start)
    packed_K = np.bincount(np.concatenate(cells), minlength=types.num_types)
    assert (packed_K == types.demand_K).all()
    assert all(types.is_cell(cell) for cell in cells)
