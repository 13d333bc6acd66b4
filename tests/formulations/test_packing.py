"""Packing formulations against brute force over all set partitions."""

import itertools
from typing import Any

import numpy as np
import pytest

from formulations import (
    packing_arcflow,
    packing_assignment,
    packing_patterns,
    packing_rows,
)
from rpopt.errors import InfeasibleError, InstanceError
from rpopt.highs import compile_pyomo, load_pyomo, solve
from rpopt.packing.instance import PackingInstance, check, evaluate
from tests.formulations import oracle
from tests.formulations.solving import is_infeasible, optimum

INSTANCES = [oracle.random_packing(np.random.default_rng(seed)) for seed in range(5)]


def all_patterns(instance: PackingInstance) -> list[tuple[int, ...]]:
    items = range(instance.num_items)
    sets = itertools.chain.from_iterable(
        itertools.combinations(items, size) for size in range(1, len(items) + 1)
    )
    limit = instance.max_samples_per_cell or instance.samples_I.sum()
    return [
        chosen
        for chosen in sets
        if instance.weight_I[list(chosen)].sum() <= instance.capacity
        and instance.samples_I[list(chosen)].sum() <= limit
    ]


def build(name: str, instance: PackingInstance) -> tuple[Any, Any]:
    if name == "patterns":
        patterns = all_patterns(instance)
        return packing_patterns, packing_patterns.build(instance, patterns=patterns)
    module = {"assignment": packing_assignment, "arcflow": packing_arcflow}[name]
    return module, module.build(instance)


def check_fewest_cells(name: str, instance: PackingInstance) -> None:
    module, model = build(name, instance)
    cells = optimum(model)
    solution = module.solution(instance, model)
    assert check(instance, solution) == []
    assert evaluate(instance, solution).num_cells == cells
    assert cells == oracle.fewest_cells(instance)


@pytest.mark.parametrize("name", ["assignment", "arcflow", "patterns"])
@pytest.mark.parametrize("instance", INSTANCES)
def test_fewest_cells(name: str, instance: PackingInstance) -> None:
    check_fewest_cells(name, instance)


def check_rows(instance: PackingInstance) -> None:
    for num_rows in range(1, 5):
        cells = num_rows * instance.num_ranks
        if num_rows % instance.row_multiple or cells > instance.num_items:
            continue
        model = packing_rows.build(instance, num_rows=num_rows)
        if not oracle.can_fill(instance, cells):
            assert is_infeasible(model)
            continue
        result = solve(compile_pyomo(model), time_limit_s=60)
        assert result.x is not None
        load_pyomo(model, result.x)
        solution = packing_rows.solution(instance, model)
        assert check(instance, solution) == []
        assert solution.num_cells == cells


@pytest.mark.parametrize("instance", INSTANCES)
def test_rows(instance: PackingInstance) -> None:
    check_rows(instance)


@pytest.mark.slow
def test_many_packings() -> None:
    for seed in range(100, 120):
        instance = oracle.random_packing(np.random.default_rng(seed))
        for name in ("assignment", "arcflow", "patterns"):
            check_fewest_cells(name, instance)
        check_rows(instance)


def test_rows_that_make_no_sense_are_refused() -> None:
    instance = PackingInstance(
        weight_I=np.array([3, 3, 3]), capacity=6, num_ranks=2, row_multiple=2
    )
    with pytest.raises(InstanceError, match="multiple of 2"):
        packing_rows.build(instance, num_rows=3)
    with pytest.raises(InfeasibleError, match="3 items leave one of 4 cells empty"):
        packing_rows.build(instance, num_rows=2)


def test_too_few_cells_are_infeasible() -> None:
    instance = PackingInstance(weight_I=np.array([4, 4, 4]), capacity=7)
    assert is_infeasible(packing_assignment.build(instance, num_cells=2))


def test_patterns_are_checked() -> None:
    instance = PackingInstance(
        weight_I=np.array([4, 4, 2]), capacity=7, max_samples_per_cell=1
    )
    for patterns, match in [
        ([(0, 1)], "8 tokens"),
        ([(0, 2)], "2 samples"),
        ([()], "empty"),
        ([(0, 0)], "repeats"),
        ([(3,)], "0 to I - 1"),
    ]:
        with pytest.raises(InstanceError, match=match):
            packing_patterns.build(instance, patterns=patterns)
    with pytest.raises(InfeasibleError, match=r"items \[1, 2\]"):
        packing_patterns.build(instance, patterns=[(0,)])


def test_the_size_of_the_graph_is_predicted_exactly() -> None:
    for seed in range(200, 240):
        instance = oracle.random_packing(np.random.default_rng(seed))
        size = packing_arcflow.graph(instance).number_of_edges()
        assert packing_arcflow.predict_arcs(instance) == size
        assert packing_arcflow.predict_arcs(instance, most_arcs=1) == min(2, size)


def test_a_graph_that_grows_too_large_is_refused() -> None:
    weight_I = np.random.default_rng(0).integers(100, 30_000, 500)
    instance = PackingInstance(weight_I=weight_I, capacity=32_768)
    with pytest.raises(InstanceError, match="more than 30000 arcs"):
        packing_arcflow.build(instance)


def test_relaxations_assignment_is_weaker() -> None:
    # Three items of 5 in cells of 9: shares fit into 15/9 cells, whole items need 3.
    instance = PackingInstance(weight_I=np.array([5, 5, 5]), capacity=9)
    relaxed = {}
    for name in ("assignment", "arcflow", "patterns"):
        model = compile_pyomo(build(name, instance)[1]).relaxed()
        relaxed[name] = solve(model, time_limit_s=60).objective
    assert relaxed["assignment"] == pytest.approx(15 / 9)
    assert relaxed["arcflow"] == pytest.approx(3)
    assert relaxed["patterns"] == pytest.approx(3)
