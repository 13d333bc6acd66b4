"""Rows are put in order; nothing else changes."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.layout.baselines import token_lpt
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.layout.rows import order_rows
from rpopt.plans import Layout
from rpopt.rules import RowOrder
from tests.layout.cases import instance, random_instance

ORDERS = get_args(RowOrder)


def one_row_each(attention: list[int]) -> tuple[LayoutInstance, Layout]:
    """One rank, and one item per row."""
    rows = len(attention)
    problem = instance(
        weight_I=[1] * rows,
        num_samples_I=[1] * rows,
        attention_ticks_IC=[[a] for a in attention],
        load_ILP=np.zeros((rows, 1, 1)),
        num_rows=rows,
        shard_of_rank_D=[0],
    )
    layout = Layout(row_I=np.arange(rows), rank_I=[0] * rows, num_rows=rows)
    return problem, layout


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("as_found", [3, 5, 1, 4, 2]),
        ("largest_first", [5, 4, 3, 2, 1]),
        ("small_at_ends", [1, 3, 5, 4, 2]),
    ],
)
def test_orders(order: RowOrder, expected: list[int]) -> None:
    problem, layout = one_row_each([3, 5, 1, 4, 2])
    ordered = order_rows(problem, layout, order)
    assert evaluate(problem, ordered).row_ticks_R.tolist() == expected


def test_equal_rows_keep_their_order() -> None:
    problem, layout = one_row_each([7, 7, 7])
    ordered = order_rows(problem, layout, "largest_first")
    assert ordered.row_I.tolist() == [0, 1, 2]


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from(["step", "row"]))
@settings(deadline=None, max_examples=30)
def test_only_the_order_changes(seed: int, num_rows: int, coupling: str) -> None:
    rng = np.random.default_rng(seed)
    problem = random_instance(
        rng, 30, num_rows, [0, 1, 1, 0], token_cap=1000, coupling=coupling
    )
    layout = token_lpt(problem)
    assert layout is not None
    for order in ORDERS:
        ordered = order_rows(problem, layout, order)
        assert check(problem, ordered) == []
        before, after = evaluate(problem, layout), evaluate(problem, ordered)
        assert after.j_ticks == before.j_ticks
        assert after.shard_ticks_S.tolist() == before.shard_ticks_S.tolist()
        assert sorted(after.row_ticks_R) == sorted(before.row_ticks_R)
        assert ordered.rank_I.tolist() == layout.rank_I.tolist()  # communicators
