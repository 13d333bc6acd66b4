"""Pyomo models: compiled, solved, brought back; refused when not linear."""

from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.highs import compile_pyomo, load_pyomo, solve


def mixed() -> Any:
    m = pyo.ConcreteModel("mixed")
    m.unused = pyo.Var(bounds=(0, 3))
    m.y = pyo.Var([1, 2], domain=pyo.Binary)
    m.x = pyo.Var(["a", "b"], domain=pyo.NonNegativeReals, bounds=(None, 10))
    m.n = pyo.Var(domain=pyo.Integers, bounds=(-5, 5))
    m.block = pyo.Block()
    m.block.z = pyo.Var()
    m.cap = pyo.Constraint(expr=m.x["a"] + 2 * m.x["b"] + 1 <= 8)
    m.range = pyo.Constraint(expr=(-1, m.n + m.x["a"], 4))
    m.link = pyo.Constraint(expr=m.x["b"] <= 3 * m.y[1])
    m.same = pyo.Constraint(expr=m.block.z == m.n + m.y[2])
    m.free = pyo.Constraint(expr=m.x["a"] >= -4)
    m.total = pyo.Objective(
        expr=m.x["a"] + m.x["b"] + m.block.z - m.y[1] + 100, sense=pyo.maximize
    )
    return m


def test_columns_are_the_declared_variables_in_order() -> None:
    m = mixed()
    model = compile_pyomo(m)
    expected = [v.name for v in m.component_data_objects(pyo.Var, active=True)]
    assert model.col_names == tuple(expected)
    assert model.maximize
    assert model.offset == 100
    assert model.col_upper.tolist() == [3, 1, 1, 10, 10, 5, np.inf]
    assert model.integrality.tolist() == [False, True, True, False, False, True, False]
    assert "range_upper" in model.row_names
    assert "range_lower" in model.row_names
    assert compile_pyomo(m, names=False).col_names == ()


def test_solutions_come_back() -> None:
    m = mixed()
    model = compile_pyomo(m)
    result = solve(model, time_limit_s=20)
    assert result.x is not None
    load_pyomo(m, result.x)
    assert pyo.value(m.total) == pytest.approx(result.objective)
    assert isinstance(m.n.value, int)
    for constraint in m.component_data_objects(pyo.Constraint):
        assert constraint.slack() >= -1e-6
    with pytest.raises(InstanceError, match="7 variables"):
        load_pyomo(m, result.x[:3])


def test_fixed_variables_keep_their_column_and_value() -> None:
    m = mixed()
    m.x["b"].fix(2)
    model = compile_pyomo(m)
    j = model.col_names.index("x[b]")
    assert (model.col_lower[j], model.col_upper[j]) == (2, 2)
    cap = model.row_names.index("cap")
    assert model.row_upper[cap] == 8 - 1 - 2 * 2
    assert j not in np.repeat(np.arange(7), np.diff(model.starts))[model.rows == cap]
    result = solve(model, time_limit_s=20)
    assert result.x is not None
    assert result.x[j] == 2
    load_pyomo(m, result.x)
    assert pyo.value(m.total) == pytest.approx(result.objective)


def quadratic_objective(m: Any) -> None:
    m.total.deactivate()
    m.squares = pyo.Objective(expr=m.y[1] * m.y[2] + m.n**2)


def quadratic_constraint(m: Any) -> None:
    m.product = pyo.Constraint(expr=m.y[1] * m.x["a"] <= 3)


@pytest.mark.parametrize("spoil", [quadratic_objective, quadratic_constraint])
def test_quadratic_models_are_refused(spoil: Any) -> None:
    m = mixed()
    spoil(m)
    with pytest.raises(InstanceError, match="linearise the products exactly"):
        compile_pyomo(m)


def test_a_product_with_a_fixed_variable_says_what_to_write() -> None:
    m = mixed()
    quadratic_constraint(m)
    m.y[1].fix(1)
    with pytest.raises(InstanceError, match="value of a fixed variable in its place"):
        compile_pyomo(m)


def test_other_models_that_do_not_fit() -> None:
    m = mixed()
    m.second = pyo.Objective(expr=m.n)
    with pytest.raises(InstanceError, match="2 active objectives"):
        compile_pyomo(m)
    m = mixed()
    m.n.domain = pyo.Set(initialize=[1, 3])
    with pytest.raises(InstanceError, match="domain"):
        compile_pyomo(m)
    m = mixed()
    m.y.fix(0)
    m.never = pyo.Constraint(expr=m.y[1] + m.y[2] >= 1)
    with pytest.raises(InfeasibleError, match="never"):
        compile_pyomo(m)
    other = mixed()
    m = pyo.ConcreteModel()
    m.v = pyo.Var()
    m.foreign = pyo.Constraint(expr=m.v + other.n <= 1)
    with pytest.raises(InstanceError, match="no active block"):
        compile_pyomo(m)


def test_a_model_without_objective_is_a_feasibility_problem() -> None:
    m = mixed()
    m.total.deactivate()
    result = solve(compile_pyomo(m), time_limit_s=20)
    assert result.objective == 0
    assert result.has_solution
