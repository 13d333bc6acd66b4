"""Layout and joint formulations against brute force over all layouts and placements."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from formulations import joint_linearised, joint_quadratic, layout_makespan
from formulations.layout_cells import MODEL_UNIT_BITS
from rpopt.errors import InstanceError
from rpopt.highs import (
    StartStatus,
    Termination,
    compile_pyomo,
    load_pyomo,
    solve,
    start_of,
)
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout, Placement
from tests.formulations import oracle
from tests.formulations.solving import is_infeasible, optimum


def check_layout(instance: LayoutInstance) -> bool:
    model = layout_makespan.build(instance)
    best = oracle.smallest_j(instance)
    if best is None:
        assert is_infeasible(model)
        return False
    bound = optimum(model)
    layout = layout_makespan.solution(instance, model)
    assert check(instance, layout) == []
    assert evaluate(instance, layout).j_ticks == best
    assert layout_makespan.ticks(instance, model, bound) == best
    return True


@pytest.mark.parametrize("seed", range(8))
def test_smallest_j(seed: int) -> None:
    check_layout(oracle.random_layout(np.random.default_rng(seed)))


@pytest.mark.parametrize("coupling", ["step", "row"])
def test_two_rows_and_two_shards(
    coupling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "SHAPES", [(2, 2, 1)])
    rng = np.random.default_rng(5)
    instance = oracle.random_layout(rng, coupling=coupling, max_samples_per_cell=None)
    assert check_layout(instance)


@pytest.mark.slow
def test_many_layouts() -> None:
    instances = (
        oracle.random_layout(np.random.default_rng(s)) for s in range(100, 180)
    )
    assert sum(map(check_layout, instances)) > 30


def test_large_ticks_are_shifted_down_and_stay_a_bound() -> None:
    small = oracle.random_layout(np.random.default_rng(3), max_samples_per_cell=None)
    scale = 2**38 + 12_345
    instance = dataclasses.replace(
        small,
        attention_ticks_IC=small.attention_ticks_IC * scale,
        layer_weight_ticks_L=small.layer_weight_ticks_L * scale,
        unit_ticks=small.unit_ticks * 2**38,
    )
    model = layout_makespan.build(instance)
    assert model.shift == 44 - MODEL_UNIT_BITS
    proved = layout_makespan.ticks(instance, model, optimum(model))
    layout = layout_makespan.solution(instance, model)
    best = oracle.smallest_j(instance)
    assert best is not None
    found = evaluate(instance, layout).j_ticks
    assert proved <= best <= found
    assert found - proved < 1e-5 * instance.unit_ticks


# ---------------------------------------------------------------------------- starts


@pytest.mark.parametrize("coupling", ["step", "row"])
@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 2, 1), (2, 1, 2), (1, 1, 3)])
def test_any_feasible_layout_is_a_start_in_canonical_numbers(
    coupling: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "SHAPES", [shape])
    rng = np.random.default_rng(11)
    tried = 0
    for _ in range(4):
        instance = oracle.random_layout(rng, coupling=coupling)
        layouts_AI = oracle.feasible_layouts(instance)
        model = layout_makespan.build(instance)
        for cell_I in rng.permutation(layouts_AI)[:5]:
            start = layout_of(instance, cell_I)
            layout_makespan.set_start(instance, model, start)
            for name, constraint in cell_constraints(model):
                assert constraint.slack() >= 0, name
            back = layout_makespan.solution(instance, model)
            assert evaluate(instance, back).j_ticks == evaluate(instance, start).j_ticks
            tried += 1
    assert tried > 5


def layout_of(instance: LayoutInstance, cell_I: np.ndarray) -> Layout:
    row_I, rank_I = np.divmod(cell_I, instance.num_ranks)
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)


def cell_constraints(model: Any) -> list[tuple[str, Any]]:
    """Constraints (1) to (7), which speak about x alone."""
    found = model.component_data_objects(layout_makespan.pyo.Constraint, active=True)
    named = [(constraint.name, constraint) for constraint in found]
    return [(name, c) for name, c in named if name[2] in "1234567" and name[3] == "_"]


def six_samples() -> LayoutInstance:
    """2 shards of 2 ranks, 2 layers on 2 EP ranks, no cap that binds."""
    rng = np.random.default_rng(1)
    weight_I = rng.integers(1, 100, 6)
    load_ILP = rng.multinomial(4 * weight_I[:, None].repeat(2, 1), [0.5, 0.5])
    return LayoutInstance(
        weight_I=weight_I,
        num_samples_I=np.ones(6, dtype=np.int64),
        attention_ticks_IC=weight_I[:, None] ** 2,
        load_ILP=load_ILP,
        layer_weight_ticks_L=[100, 100],
        offset_ticks=0,
        unit_ticks=1,
        num_rows=1,
        token_cap=int(weight_I.sum()),
        shard_of_rank_D=[0, 0, 1, 1],
    )


@pytest.mark.parametrize("cells", [[0, 1, 2, 3, 0, 1], [0, 2, 1, 3, 1, 0]])
def test_a_start_does_not_change_the_optimum(cells: list[int]) -> None:
    """HiGHS 1.16 with presolve takes such starts for cheaper than they are."""
    instance = six_samples()
    model = layout_makespan.build(instance)
    layout_makespan.set_start(instance, model, layout_of(instance, np.array(cells)))
    compiled = compile_pyomo(model, integral_objective=True)
    result = solve(compiled, time_limit_s=60, start=start_of(model))
    assert result.start_status is StartStatus.ACCEPTED
    assert result.termination is Termination.OPTIMAL
    assert result.bound == oracle.smallest_j(instance)
    assert result.objective == pytest.approx(result.bound)


# ------------------------------------------------------------------- placement as well


def random_joint(seed: int) -> tuple[LayoutInstance, np.ndarray]:
    rng = np.random.default_rng(seed)
    small = oracle.random_layout(rng, max_samples_per_cell=None)
    keep = min(small.num_items, max(small.num_cells, 5))
    demand_ILE = rng.integers(0, 9, (keep, 2, 4))
    arrays: dict[str, Any] = {
        name: getattr(small, name)[:keep]
        for name in ("weight_I", "num_samples_I", "attention_ticks_IC")
    }
    instance = dataclasses.replace(
        small,
        **arrays,
        load_ILP=np.zeros((keep, 2, 2), dtype=np.int32),
        layer_weight_ticks_L=rng.integers(1, 4, 2),
    )
    return instance, demand_ILE


def smallest_joint_j(instance: LayoutInstance, demand_ILE: np.ndarray) -> int:
    # Layers do not meet in a maximum below J, but J is a maximum over shards.
    layouts = oracle.feasible_layouts(instance)
    best = None
    choices = oracle.rank_choices(4, 2)
    for first in choices:
        for second in choices:
            placement = Placement.from_ranks(np.array([first, second]), 2)
            placed = joint_quadratic.placed(instance, demand_ILE, placement)
            ticks = int(oracle.layout_ticks(placed, layouts).min())
            best = ticks if best is None else min(best, ticks)
    assert best is not None
    return best


def check_joint(seed: int) -> None:
    instance, demand_ILE = random_joint(seed)
    if len(oracle.feasible_layouts(instance)) == 0:
        return
    model = joint_linearised.build(instance, demand_ILE=demand_ILE)
    bound = optimum(model)
    placement, layout = joint_linearised.solution(instance, model)
    placed = joint_linearised.placed(instance, demand_ILE, placement)
    assert check(placed, layout) == []
    found = evaluate(placed, layout).j_ticks
    assert found == joint_linearised.ticks(instance, model, bound)
    assert found == smallest_joint_j(instance, demand_ILE)
    # The quadratic statement accepts that solution at the same cost.
    quadratic = joint_quadratic.build(instance, demand_ILE=demand_ILE)
    for name in ("x", "at", "attention_peak", "expert_peak", "slowest", "row"):
        if hasattr(quadratic, name):
            for index, variable in getattr(quadratic, name).items():
                variable.set_value(getattr(model, name)[index].value)
    for constraint in quadratic.component_data_objects(
        layout_makespan.pyo.Constraint, active=True
    ):
        assert constraint.slack() >= -1e-6, constraint.name
    assert layout_makespan.pyo.value(quadratic.objective) == pytest.approx(bound)


@pytest.mark.parametrize("seed", range(4))
def test_joint_optimum(seed: int) -> None:
    check_joint(seed)


@pytest.mark.slow
def test_many_joint_optima() -> None:
    for seed in range(100, 130):
        check_joint(seed)


def test_the_quadratic_model_does_not_reach_highs() -> None:
    instance, demand_ILE = random_joint(0)
    model = joint_quadratic.build(instance, demand_ILE=demand_ILE)
    with pytest.raises(InstanceError, match="linearise the products exactly"):
        compile_pyomo(model)


def test_fixing_the_placement_makes_the_quadratic_model_linear() -> None:
    instance, demand_ILE = random_joint(1)
    model = joint_quadratic.build(instance, demand_ILE=demand_ILE)
    for _, expert, rank in model.at:
        model.at[_, expert, rank].fix(int(expert // 2 == rank))
    model.eq13_ranks_in_order.deactivate()
    result = solve(compile_pyomo(model), time_limit_s=60)
    assert result.x is not None
    load_pyomo(model, result.x)
    placement, layout = joint_quadratic.solution(instance, model)
    placed = joint_quadratic.placed(instance, demand_ILE, placement)
    assert evaluate(placed, layout).j_ticks == oracle.smallest_j(placed)


def test_demand_that_does_not_fit_is_refused() -> None:
    instance, demand_ILE = random_joint(0)
    with pytest.raises(InstanceError, match="does not fit"):
        joint_linearised.build(instance, demand_ILE=demand_ILE[:, :, :3])
