"""Layout and joint formulations against brute force over all layouts and placements."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from formulations import joint_linearised, joint_quadratic, layout_makespan
from formulations.layout_cells import MODEL_UNIT_BITS
from rpopt.errors import InstanceError
from rpopt.highs import compile_pyomo, load_pyomo, solve
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Placement
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
