"""Equal numbers of samples on every rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.stacks.even import even_out
from rpopt.topology import Topology
from tests.stacks.cases import check_cells


@st.composite
def uneven(draw: st.DrawFn) -> tuple[list[list[list[int]]], np.ndarray]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=8, max_size=8))
    sizes[0] += -sum(sizes) % 4
    unit, cells = 0, []
    for rank in range(4):
        rows = []
        for size in sizes[2 * rank : 2 * rank + 2]:
            rows.append(list(range(unit, unit + size)))
            unit += size
        cells.append(rows)
    tokens = draw(st.lists(st.integers(1, 9), min_size=unit, max_size=unit))
    return cells, np.array(tokens)


@given(uneven())
def test_counts_become_equal_and_the_cap_holds(case: tuple) -> None:
    cells, tokens = case
    topology = Topology(dp=4, ep=2)
    even = even_out(cells, tokens, int(tokens.sum()), topology)
    assert len({sum(map(len, rows)) for rows in even}) == 1
    check_cells(even, tokens, int(tokens.sum()))
    again = even_out(even, tokens, int(tokens.sum()), topology)
    assert again == even


def test_the_shortest_moves_and_stays_in_its_row_and_shard() -> None:
    cells = [[[0, 1, 2], [3]], [[4], [5]], [[6], [7]], [[8], [9, 10, 11]]]
    tokens = np.array([5, 1, 5, 5, 5, 5, 5, 5, 5, 5, 5, 2])
    even = even_out(cells, tokens, 20, Topology(dp=4, ep=2))
    assert even == [[[0, 2], [3]], [[1, 4], [5]], [[6], [7, 11]], [[8], [9, 10]]]


def test_no_room_and_no_equal_share() -> None:
    cells = [[[0, 1, 2]], [[3]]]
    with pytest.raises(InfeasibleError, match="no room"):
        even_out(cells, np.array([3, 3, 3, 9]), 9, Topology(dp=2, ep=1))
    with pytest.raises(InstanceError, match="3 samples .* 2 DP ranks"):
        even_out([[[0, 1]], [[2]]], np.ones(3, int), 9, Topology(dp=2, ep=1))
