"""Item types: what is grouped and scaled away comes back."""

import numpy as np

from rpopt.exact.item_types import ItemTypes
from rpopt.packing.heuristics import first_fit_decreasing
from rpopt.packing.instance import PackingInstance, check


def test_equal_items_units_and_reachable_capacity() -> None:
    instance = PackingInstance(weight_I=[64, 192, 64, 640], capacity=1000)
    types = ItemTypes.of(instance)
    assert types.weight_K.tolist() == [10, 3, 1]
    assert types.demand_K.tolist() == [1, 1, 2]
    assert types.unit_tokens == 64
    assert types.capacity == 15
    tight = ItemTypes.of(PackingInstance(weight_I=[5, 5, 7], capacity=9))
    assert tight.capacity == 7


def test_a_limit_that_never_binds_is_ignored() -> None:
    weight_I = [5, 5, 7, 3, 3]
    loose = PackingInstance(weight_I=weight_I, capacity=9, max_samples_per_cell=3)
    assert ItemTypes.of(loose).sample_limit == 0
    binding = PackingInstance(weight_I=weight_I, capacity=12, max_samples_per_cell=2)
    assert ItemTypes.of(binding).sample_limit == 2


def test_packings_there_and_back() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        num = int(rng.integers(1, 30))
        instance = PackingInstance(
            weight_I=rng.integers(1, 21, num),
            capacity=20,
            num_samples_I=rng.integers(1, 3, num),
            max_samples_per_cell=4,
        )
        types, packing = ItemTypes.of(instance), first_fit_decreasing(instance)
        cells = types.cells(packing)
        assert len(cells) == packing.num_cells
        again = types.solution(cells)
        assert check(instance, again) == []
        assert again.num_cells == packing.num_cells
        fitted = types.first_fit(types.demand_K, num)
        assert fitted is not None
        assert check(instance, types.solution(fitted)) == []
        assert types.first_fit(types.demand_K, len(fitted) - 1) is None


def test_a_part_keeps_what_fits() -> None:
    types = ItemTypes.of(PackingInstance(weight_I=[7, 5, 5, 3], capacity=10))
    part, kept = types.part(np.array([0, 2, 1]))
    assert part.weight_K.tolist() == [5, 3]
    assert kept.tolist() == [1, 2]
    assert part.capacity == types.capacity
