"""A previous window's layout as a start for another window."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import MismatchError
from rpopt.layout.carry import carry_over
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from tests.anneal.instances import random_instance

SHARDS = {"num_shards": 2, "shard_size": 2}


def shuffled(instance: LayoutInstance, order: np.ndarray) -> LayoutInstance:
    """The same items in another order."""
    return replace(
        instance,
        weight_I=instance.weight_I[order],
        num_samples_I=instance.num_samples_I[order],
        attention_ticks_IC=instance.attention_ticks_IC[order],
        load_ILP=instance.load_ILP[order],
    )


def test_the_same_items_in_another_order_keep_their_cells() -> None:
    instance, layout = random_instance(3, num_items=30, num_rows=2, **SHARDS)
    order = np.random.default_rng(0).permutation(30)
    carried = carry_over(layout, instance, shuffled(instance, order))
    assert carried is not None
    assert carried.row_I.tolist() == layout.row_I[order].tolist()
    assert carried.rank_I.tolist() == layout.rank_I[order].tolist()


def test_twice_as_many_items_go_two_by_two_to_the_old_cells() -> None:
    instance, layout = random_instance(4, num_items=20, num_rows=2, **SHARDS)
    roomy = replace(instance, token_cap=10_000, max_samples_per_cell=None)
    doubled = shuffled(roomy, np.repeat(np.arange(20), 2))
    carried = carry_over(layout, instance, doubled)
    assert carried is not None
    attention = doubled.attention_ticks_IC.sum(axis=1)
    assert np.unique(attention).size == 20
    assert carried.row_I.tolist() == np.repeat(layout.row_I, 2).tolist()
    assert carried.rank_I.tolist() == np.repeat(layout.rank_I, 2).tolist()


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 3), slack=st.integers(0, 40))
def test_what_is_carried_keeps_every_constraint(
    seed: int, rows: int, slack: int
) -> None:
    previous, layout = random_instance(seed, num_rows=2, **SHARDS)
    instance, _ = random_instance(seed + 1, num_rows=rows, slack=slack, **SHARDS)
    instance = replace(instance, shard_of_rank_D=previous.shard_of_rank_D)
    carried = carry_over(layout, previous, instance)
    assert carried is None or check(instance, carried) == []
    roomy = replace(instance, token_cap=10_000, max_samples_per_cell=None)
    found = carry_over(layout, previous, roomy)
    assert found is not None
    assert check(roomy, found) == []


def test_none_where_there_is_no_room() -> None:
    previous, layout = random_instance(0, num_items=8, num_rows=1, **SHARDS)
    weight_I = np.array([6, 6, 6, 6, 4, 4, 4, 4])
    tight = replace(
        previous,
        weight_I=weight_I,
        attention_ticks_IC=previous.attention_ticks_IC[:, :1] * 0,
        token_cap=10,
        max_samples_per_cell=None,
    )
    pairs = Layout(row_I=np.zeros(8), rank_I=np.array([0, 0, 0, 0, 1, 1, 2, 3]),
                   num_rows=1)  # fmt: skip
    assert carry_over(pairs, previous, replace(tight, token_cap=9)) is None
    found = carry_over(pairs, previous, tight)
    assert found is not None
    assert check(tight, found) == []


def test_windows_that_do_not_belong_together_are_refused() -> None:
    instance, layout = random_instance(0, num_items=12, num_rows=1, **SHARDS)
    other, _ = random_instance(0, num_items=12, num_rows=1, num_shards=1, shard_size=3)
    with pytest.raises(MismatchError, match="4 ranks in 2 shards, this one has 3 in 1"):
        carry_over(layout, instance, other)
    short = replace(layout, row_I=layout.row_I[1:], rank_I=layout.rank_I[1:])
    with pytest.raises(MismatchError, match="11 items, its window 12"):
        carry_over(short, instance, instance)
