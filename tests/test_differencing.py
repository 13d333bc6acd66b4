import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rpopt.differencing import largest_differencing


def test_largest_differencing_of_the_textbook() -> None:
    cost_I = np.array([8, 7, 6, 5, 4])
    part_I = largest_differencing(cost_I, 2)
    assert sorted(np.bincount(part_I, weights=cost_I).tolist()) == [14, 16]
    assert largest_differencing(cost_I, 1).tolist() == [0] * 5
    assert sorted(largest_differencing(cost_I, 9).tolist()) == [0, 1, 2, 3, 4]


def test_largest_differencing_balances_many_parts() -> None:
    cost_I = np.random.default_rng(1).integers(1, 1000, 400)
    load = np.bincount(largest_differencing(cost_I, 7), weights=cost_I)
    assert load.max() - load.min() <= 1


def slow_differencing(costs: list[int], num_parts: int) -> list[int]:
    """The same method on plain tuples; the sums of the parts, in order."""
    heap = [[cost] + [0] * (num_parts - 1) for cost in costs]
    while len(heap) > 1:
        heap.sort(key=lambda parts: parts[0] - parts[-1])
        a, b = heap.pop(), heap.pop()
        heap.append(sorted(map(sum, zip(a, b[::-1], strict=True)), reverse=True))
    return sorted(heap[0])


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 25))
def test_largest_differencing_is_the_method(seed: int, parts: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    cost_I = np.unique(rng.integers(1, 2**40, parts + more))  # distinct: no ties
    part_I = largest_differencing(cost_I, parts)
    assert sorted(set(part_I.tolist())) == list(range(min(parts, cost_I.size)))
    total_X = np.zeros(parts, dtype=np.int64)
    np.add.at(total_X, part_I, cost_I)
    assert sorted(total_X.tolist()) == slow_differencing(cost_I.tolist(), parts)


@given(st.integers(1, 5), st.integers(0, 5))
def test_items_without_cost_fill_parts(parts: int, costly: int) -> None:
    cost_I = np.array([3] * costly + [0] * 5)
    part_I = largest_differencing(cost_I, parts)
    assert sorted(set(part_I.tolist())) == list(range(parts))
