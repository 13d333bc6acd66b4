"""Splitting a packing into more cells."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.packing import PackingInstance, PackingSolution, check, pack, split_to
from rpopt.packing.cells import from_cells, to_cells
from tests.packing.examples import instances, make


@settings(max_examples=50, deadline=None)
@given(instance=instances(), data=st.data())
def test_splitting_reaches_any_number_of_cells(
    instance: PackingInstance, data: st.DataObject
) -> None:
    packed = pack(instance)
    num_cells = data.draw(st.integers(packed.num_cells, instance.num_items))
    split = split_to(instance, packed, num_cells)
    assert split.num_cells == num_cells
    assert check(instance, split) == []


def test_the_heaviest_cell_is_halved_first() -> None:
    instance = make([9, 4, 3, 2, 2], 10)
    packed = PackingSolution(cell_I=np.array([0, 1, 1, 1, 2]))
    split = split_to(instance, packed, 4)
    assert to_cells(split) == [[0], [1], [4], [2, 3]]


def test_too_few_items_name_the_remedy() -> None:
    instance = make([1, 1, 1], 10)
    with pytest.raises(InfeasibleError, match="add 5 zero-weight dummies"):
        split_to(instance, pack(instance), 8)


def test_fewer_cells_than_there_are() -> None:
    instance = make([9, 9, 9], 10)
    with pytest.raises(InstanceError, match="at least 3"):
        split_to(instance, pack(instance), 2)


def test_cells_and_back() -> None:
    solution = PackingSolution(cell_I=np.array([1, 0, 2, 1]))
    assert from_cells(to_cells(solution), 4) == solution
    assert from_cells([[1], [], [0, 3], [2]], 4) == solution
