"""Solve a formulation, bring its values back, and return the optimum and its bound."""

from typing import Any

from rpopt.highs import Termination, compile_pyomo, load_pyomo, solve


def optimum(model: Any, *, integral: bool = True) -> int:
    """Solve to optimality; the model holds the solution's values afterwards."""
    compiled = compile_pyomo(model, integral_objective=integral)
    result = solve(compiled, time_limit_s=60)
    assert result.termination is Termination.OPTIMAL, result.failure
    assert result.x is not None
    assert result.objective is not None
    assert result.bound is not None
    load_pyomo(model, result.x)
    whole = round(result.objective)
    assert abs(result.objective - whole) < 1e-6
    assert result.bound == whole
    return whole


def is_infeasible(model: Any) -> bool:
    result = solve(compile_pyomo(model), time_limit_s=60)
    return result.termination is Termination.INFEASIBLE
