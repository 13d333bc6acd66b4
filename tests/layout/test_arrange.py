"""Cells become layouts: all of them, each cell in one place."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.layout.arrange import arrange, deal, from_packing, split_cells
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from tests.layout.cases import instance, random_instance

SHARDS = ([0], [0, 0], [0, 1], [1, 0, 0, 1], [0, 1, 2])


def one_item_cells(attention: list[int], **changes: Any) -> LayoutInstance:
    """As many cells as items: 2 rows, no routes."""
    count = len(attention)
    fields: dict[str, Any] = {
        "weight_I": [1] * count,
        "num_samples_I": [1] * count,
        "attention_ticks_IC": [[a] for a in attention],
        "load_ILP": np.zeros((count, 1, 1)),
        "shard_of_rank_D": [0, 0, 1, 1],
    }
    return instance(**{**fields, **changes})


def cells_of(layout: Layout) -> list[tuple[int, int]]:
    return list(zip(layout.row_I.tolist(), layout.rank_I.tolist(), strict=True))


def test_similar_cells_meet_and_shards_are_even() -> None:
    problem = one_item_cells([1, 9, 2, 8, 3, 7, 4, 6])
    layout = arrange(problem, np.arange(8))
    assert check(problem, layout) == []
    attention_RS = evaluate(problem, layout).attention_ticks_RSC[:, :, 0]
    assert attention_RS.tolist() == [[9, 7], [2, 4]]


def test_row_coupling_fills_rows_with_similar_groups() -> None:
    problem = one_item_cells([9, 9, 1, 1, 2, 2, 3, 3], coupling="row")
    layout = arrange(problem, np.arange(8))
    assert check(problem, layout) == []
    attention_RS = evaluate(problem, layout).attention_ticks_RSC[:, :, 0]
    assert attention_RS.tolist() == [[9, 3], [2, 1]]


def test_ranks_follow_the_shard_map() -> None:
    problem = one_item_cells([1, 9, 2, 8, 3, 7, 4, 6], shard_of_rank_D=[1, 0, 0, 1])
    layout = arrange(problem, np.arange(8))
    assert check(problem, layout) == []
    assert evaluate(problem, layout).shard_ticks_S.tolist() == [11, 11]


def test_deal_keeps_the_order_of_the_cells() -> None:
    problem = one_item_cells([1] * 8)
    dealt = deal(problem, np.array([5, 0, 7, 1, 2, 3, 4, 6]))
    assert cells_of(dealt)[:4] == [(1, 1), (0, 0), (1, 3), (0, 1)]


@given(st.integers(0, 2**32), st.sampled_from(SHARDS), st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_every_packing_becomes_a_layout(
    seed: int, shard_of_rank_D: list[int], num_rows: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = random_instance(
        rng, 20, num_rows, shard_of_rank_D, token_cap=1000, max_samples_per_cell=20
    )
    packed_I = rng.integers(rng.integers(1, problem.num_cells + 1), size=20)
    layout = from_packing(problem, packed_I)
    assert check(problem, layout) == []
    for cell in set(cells_of(layout)):
        together = [i for i, other in enumerate(cells_of(layout)) if other == cell]
        assert len({int(packed_I[i]) for i in together}) == 1


def test_dummies_get_cells_of_their_own() -> None:
    problem = one_item_cells([5, 5, 5, 5, 0, 0, 0, 0])
    layout = from_packing(problem, np.array([0, 0, 1, 1]))
    assert check(problem, layout) == []
    assert len(set(cells_of(layout))) == 8


def test_a_packing_of_other_items_is_refused() -> None:
    with pytest.raises(InstanceError, match="packing has 7 items, the layout only 6"):
        from_packing(instance(), np.arange(7) % 3)


def test_too_many_cells_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="5 cells does not fit 2 rows x 2 ranks"):
        from_packing(instance(), np.array([0, 1, 2, 3, 9, 9]))


def test_the_dearest_cell_is_split_and_the_new_one_comes_last() -> None:
    problem = instance(token_cap=15)
    split = split_cells(problem, np.array([3, 3, 3, 0, 7, 7]))
    assert split.tolist() == [1, 3, 3, 0, 2, 2]
    by_weight = split_cells(problem, np.array([0, 0, 1, 1, 1, 2]), problem.weight_I)
    assert by_weight.tolist() == [0, 3, 1, 1, 1, 2]


def test_items_without_cost_are_split_too() -> None:
    problem = instance(attention_ticks_IC=[[0]] * 6)
    split = split_cells(problem, np.zeros(6, dtype=np.int64))
    assert sorted(set(split.tolist())) == [0, 1, 2, 3]
