"""Every model that reaches HiGHS can be written down, found by digest and solved again.

Another solver, or this one later, must be able to check what HiGHS claimed.
"""

import gzip
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pytest

import formulations
from formulations import (
    joint_linearised,
    layout_makespan,
    packing_arcflow,
    packing_assignment,
    packing_patterns,
    packing_rows,
    placement_covariance,
    placement_makespan,
    placement_window,
)
from rpopt.exact.leader_master import Master
from rpopt.highs import LinearModel, archive_mps, compile_pyomo, solve
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance
from rpopt.placement.instance_covariance import second_moments
from tests.formulations import oracle
from tests.placement.cases_window import random_instance as random_window

STATEMENTS = {"joint_quadratic", "layout_cells"}
"""Modules that do not reach HiGHS: a quadratic statement, and what layouts share."""


def packing(seed: int) -> PackingInstance:
    weight_I = np.random.default_rng(seed).integers(2, 9, 6)
    return PackingInstance(weight_I=weight_I, capacity=16)


def joint(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    load_ILP = np.zeros((4, 1, 2), dtype=np.int32)
    layout = LayoutInstance(
        weight_I=rng.integers(1, 9, 4),
        num_samples_I=[1] * 4,
        attention_ticks_IC=rng.integers(1, 9, (4, 1)),
        load_ILP=load_ILP,
        layer_weight_ticks_L=[1],
        offset_ticks=0,
        unit_ticks=1,
        num_rows=1,
        token_cap=40,
        shard_of_rank_D=[0, 0],
    )
    demand_ILE = rng.integers(0, 9, (4, 1, 4))
    return joint_linearised.build(layout, demand_ILE=demand_ILE)


def covariance(seed: int) -> Any:
    demand_NLE = np.random.default_rng(seed).integers(0, 9, (5, 1, 4))
    return placement_covariance.build_linear(second_moments(demand_NLE, 2), layer=0)


def placement(seed: int) -> Any:
    instance = oracle.random_placement(np.random.default_rng(seed))
    return placement_makespan.build(instance, layer=0)


def layout(seed: int) -> Any:
    return layout_makespan.build(oracle.random_layout(np.random.default_rng(seed)))


SINGLES = [(i,) for i in range(6)]
PYOMO: dict[str, Callable[[int], Any]] = {
    "joint_linearised": joint,
    "layout_makespan": layout,
    "packing_arcflow": lambda seed: packing_arcflow.build(packing(seed)),
    "packing_assignment": lambda seed: packing_assignment.build(packing(seed)),
    "packing_patterns": lambda seed: packing_patterns.build(
        packing(seed), patterns=[*SINGLES, (0, seed)]
    ),
    "packing_rows": lambda seed: packing_rows.build(packing(seed), num_rows=6),
    "placement_covariance": covariance,
    "placement_makespan": placement,
    "placement_window": lambda seed: placement_window.build(
        random_window(seed), layer=0
    ),
}


def leaders(seed: int) -> LinearModel:
    return Master(oracle.random_layout(np.random.default_rng(seed)), 0, 2).model()


def compiled(name: str, seed: int) -> LinearModel:
    return leaders(seed) if name == "leaders" else compile_pyomo(PYOMO[name](seed))


def test_no_formulation_is_left_out() -> None:
    modules = {module.name for module in pkgutil.iter_modules(formulations.__path__)}
    assert modules == PYOMO.keys() | STATEMENTS


@pytest.mark.parametrize("name", [*PYOMO, "leaders"])
def test_a_model_is_archived_by_digest_and_solved_again(
    name: str, tmp_path: Path
) -> None:
    model = compiled(name, 1)
    path = archive_mps(model, tmp_path)
    assert path.name == f"{model.digest}.mps.gz"
    assert compiled(name, 1).digest == model.digest != compiled(name, 2).digest
    result = solve(model, time_limit_s=60)
    assert result.objective is not None
    assert optimum_of_file(path) == pytest.approx(result.objective)


def optimum_of_file(path: Path) -> float:
    plain = path.with_suffix("")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    assert solver.readModel(str(plain)) == highspy.HighsStatus.kOk
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)
