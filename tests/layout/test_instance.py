"""The checker catches every broken constraint; the instance refuses bad data."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from tests.layout.cases import instance, random_instance, tiny_instances
from tests.oracle.layout import feasible_layouts

ROW_I, RANK_I = [0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]


def layout(**changes: Any) -> Layout:
    return Layout(**{"row_I": ROW_I, "rank_I": RANK_I, "num_rows": 2, **changes})


def broken(problem: LayoutInstance, found: Layout) -> list[str]:
    return [v.constraint for v in check(problem, found)]


def test_a_feasible_layout_has_no_violations() -> None:
    assert check(instance(max_samples_per_cell=2), layout()) == []


@pytest.mark.parametrize(
    ("constraint", "problem", "found", "message"),
    [
        (
            "every item once",
            instance(),
            layout(row_I=ROW_I[:5], rank_I=RANK_I[:5]),
            "5 items laid out, 6 exist",
        ),
        ("row count", instance(), layout(num_rows=3), "3 rows, not 2"),
        (
            "row range",
            instance(),
            layout(row_I=[*ROW_I[:5], 2]),
            "item 5 has row 2, allowed 0 to 1",
        ),
        (
            "row range",
            instance(),
            layout(row_I=[-1, *ROW_I[1:]]),
            "item 0 has row -1, allowed 0 to 1",
        ),
        (
            "rank range",
            instance(),
            layout(rank_I=[*RANK_I[:5], 2]),
            "item 5 has rank 2, allowed 0 to 1",
        ),
        (
            "empty cell",
            instance(),
            layout(row_I=[0, 0, 1, 1, 0, 1], rank_I=[0, 1, 0, 0, 0, 0]),
            "cell (row 1, rank 1) is empty",
        ),
        (
            "token cap",
            instance(token_cap=5),
            layout(),
            "cell (row 0, rank 0) holds 6 tokens, cap 5",
        ),
        (
            "samples per cell",
            instance(num_samples_I=[1, 1, 1, 1, 2, 1], max_samples_per_cell=2),
            layout(),
            "cell (row 0, rank 0) holds 3 samples, at most 2",
        ),
    ],
)
def test_every_broken_constraint_is_named(
    constraint: str, problem: LayoutInstance, found: Layout, message: str
) -> None:
    violations = check(problem, found)
    assert [(v.constraint, v.message) for v in violations] == [(constraint, message)]


def test_all_violations_are_listed() -> None:
    found = layout(row_I=[0, 0, 0, 0, 0, 1], rank_I=[0, 0, 0, 0, 0, 1])
    problem = instance(max_samples_per_cell=2)
    assert broken(problem, found) == [
        "token cap",
        "samples per cell",
        "empty cell",
        "empty cell",
    ]


@given(tiny_instances())
@settings(deadline=None, max_examples=25)
def test_the_checker_accepts_what_brute_force_finds_and_nothing_else(
    problem: LayoutInstance,
) -> None:
    accepted = {found.digest for found in feasible_layouts(problem)}
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = Layout(
            row_I=rng.integers(problem.num_rows, size=problem.num_items),
            rank_I=rng.integers(problem.num_ranks, size=problem.num_items),
            num_rows=problem.num_rows,
        )
        assert (found.digest in accepted) == (not check(problem, found))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_I": [4, 3, 3, 2, 2]}, "disagree on the number of items.*'weight_I'"),
        ({"weight_I": [7, 3, 3, 2, 2, 1]}, r"lie in \[1, 7\].*token_cap = 6"),
        ({"weight_I": [0, 3, 3, 2, 2, 1]}, r"lie in \[0, 3\].*token_cap = 6"),
        ({"weight_I": [-1, 3, 3, 2, 2, 1]}, r"weight_I\[0\] = -1 is outside \[0"),
        ({"layer_weight_ticks_L": [5, 5]}, "2 layer weights for 1 layers"),
        ({"num_rows": 4}, "6 items cannot fill 8 cells.*add dummies or use fewer rows"),
        ({"num_rows": 0}, "num_rows = 0 must be at least 1"),
        ({"unit_ticks": 0}, "unit_ticks = 0 must be at least 1"),
        ({"offset_ticks": -1}, "offset_ticks = -1 must be at least 0"),
        ({"max_samples_per_cell": 0}, "max_samples_per_cell = 0 must be at least 1"),
        ({"coupling": "epoch"}, "coupling = 'epoch'; use 'step' or 'row'"),
        (
            {"shard_of_rank_D": []},
            r"shard_of_rank_D = \[\]; give one shard per DP rank",
        ),
        ({"shard_of_rank_D": [0, 9**9]}, r"shard_of_rank_D = \[0, 387420489\]"),
        ({"shard_of_rank_D": [0, 0, 1]}, r"shards of \[2, 1\] ranks; .* equal"),
        (
            {"attention_ticks_IC": np.zeros((6, 0))},
            "0 attention classes and 2 EP ranks",
        ),
        ({"load_ILP": np.zeros((6, 1, 0))}, "1 attention classes and 0 EP ranks"),
        ({"attention_ticks_IC": [[2**60]] * 6}, r"costs sum to 6\.918e\+18 ticks"),
        ({"layer_weight_ticks_L": [2**61]}, "costs sum to .*use a smaller unit"),
    ],
)
def test_bad_data_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        instance(**changes)


def test_too_few_items_is_an_instance_error_that_names_the_remedy() -> None:
    with pytest.raises(InstanceError, match="add dummies or use fewer rows") as error:
        instance(num_rows=4)
    assert not isinstance(error.value, InfeasibleError)


def test_sizes() -> None:
    rng = np.random.default_rng(0)
    problem = random_instance(rng, 30, 3, [1, 0, 1, 0, 2, 2])
    assert (problem.num_items, problem.num_ranks, problem.num_cells) == (30, 6, 18)
    assert (problem.num_shards, problem.shard_size, problem.num_groups) == (3, 2, 9)
