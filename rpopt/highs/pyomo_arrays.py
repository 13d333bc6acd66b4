"""Pyomo models as arrays, and solutions back in Pyomo's variables."""

from typing import Any

import numpy as np

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.highs.linear import FloatArray, LinearModel
from rpopt.records import BoolArray


def compile_pyomo(
    model: Any, *, integral_objective: bool = False, names: bool = True
) -> LinearModel:
    """Compile a linear Pyomo model to arrays.

    Column j is the j-th variable of `model.component_data_objects(Var, active=True)`,
    fixed and unused ones included, so that `load_pyomo` can bring a solution back. A
    constraint with two different finite bounds becomes two rows.

    Parameters
    ----------
    model
        A Pyomo model with at most one active objective.
    integral_objective
        Promise that the optimum is a whole number; see `LinearModel`.
    names
        Whether to keep the names of variables and constraints.

    Raises
    ------
    InstanceError
        For quadratic or otherwise nonlinear models and unsupported components.
    InfeasibleError
        For a constraint without variables that does not hold.
    """
    variables = _variables(model)
    info = _standard_form(model)
    place = {id(v): j for j, v in enumerate(variables)}
    for foreign in info.columns:
        if id(foreign) not in place:
            raise InstanceError(
                f"variable {foreign.name} is used but belongs to no active block of the"
                " model; add its block"
            )
    order = np.array([place[id(v)] for v in info.columns], dtype=np.int64)
    assert len(np.unique(order)) == len(order), "Pyomo gave a variable two columns"
    cost = np.zeros(len(variables))
    offset, maximize = 0.0, False
    if info.objectives:
        cost[order] = info.c.toarray()[0]
        offset = float(info.c_offset[0])
        maximize = int(info.objectives[0].sense) == -1
    lower, upper, integrality = _domains(variables)
    matrix = info.A.tocoo()
    kind = np.array([row.bound_type for row in info.rows], dtype=np.int64)
    rhs = np.array(info.rhs, dtype=np.float64)
    return LinearModel.from_triplets(
        rows=matrix.row,
        cols=order[matrix.col],
        values=matrix.data,
        col_cost=cost,
        col_lower=lower,
        col_upper=upper,
        integrality=integrality,
        row_lower=np.where(kind <= 0, rhs, -np.inf),
        row_upper=np.where(kind >= 0, rhs, np.inf),
        offset=offset,
        maximize=maximize,
        integral_objective=integral_objective,
        col_names=tuple(v.name for v in variables) if names else (),
        row_names=tuple(_row_names(info.rows)) if names else (),
    )


def load_pyomo(model: Any, x: FloatArray) -> None:
    """Set the variables of a Pyomo model to x, in the order of `compile_pyomo`.

    Parameters
    ----------
    model
        The model that was compiled.
    x
        Shape (C,).
    """
    variables = _variables(model)
    if len(variables) != len(x):
        raise InstanceError(f"x has {len(x)} values for {len(variables)} variables")
    for variable, value in zip(variables, x.tolist(), strict=True):
        whole = not variable.is_continuous()
        variable.set_value(round(value) if whole else value, skip_validation=True)


def start_of(model: Any) -> FloatArray:
    """Return the values of a model's variables as a start; NaN where there is none.

    Returns
    -------
    FloatArray
        Shape (C,), in the order of `compile_pyomo`.
    """
    values = [variable.value for variable in _variables(model)]
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def _variables(model: Any) -> list[Any]:
    from pyomo.environ import Var

    return list(model.component_data_objects(Var, active=True, descend_into=True))


def _standard_form(model: Any) -> Any:
    """Run Pyomo's compiler, with errors of our own."""
    from pyomo.common.errors import (
        InfeasibleConstraintException,
        InvalidExpressionError,
    )
    from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

    compiler = LinearStandardFormCompiler()
    try:
        # No column_order: with it, Pyomo 6.10 gives the column of a fixed element of an
        # indexed variable to another element.
        info = compiler.write(model, mixed_form=True, set_sense=None)
    except InfeasibleConstraintException as error:
        raise InfeasibleError(f"Pyomo model {model.name}: {error}") from error
    except InvalidExpressionError as error:
        raise InstanceError(
            f"Pyomo model {model.name}: {error} HiGHS refuses mixed-integer quadratic"
            " models: linearise the products exactly (a new variable per product of"
            " binaries), approximate the convex form from outside, and write the value"
            " of a fixed variable in its place"
        ) from error
    except ValueError as error:
        raise InstanceError(f"Pyomo model {model.name}: {error}") from error
    if len(info.objectives) > 1:
        names = ", ".join(o.name for o in info.objectives)
        raise InstanceError(
            f"Pyomo model {model.name} has {len(info.objectives)} active objectives"
            f" ({names}); deactivate all but one"
        )
    return info


def _domains(variables: list[Any]) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return lower and upper bounds and integrality; shape (C,) each."""
    lower = np.full(len(variables), -np.inf)
    upper = np.full(len(variables), np.inf)
    integrality = np.zeros(len(variables), dtype=np.bool_)
    for j, variable in enumerate(variables):
        low, high = variable.bounds
        if variable.fixed:
            low = high = variable.value
        lower[j] = -np.inf if low is None else low
        upper[j] = np.inf if high is None else high
        if not variable.is_continuous():
            if not variable.is_integer():
                raise InstanceError(
                    f"variable {variable.name} has the domain {variable.domain}; use"
                    " reals, integers or binaries"
                )
            integrality[j] = True
    return lower, upper, integrality


def _row_names(rows: list[Any]) -> list[str]:
    """Name rows after their constraints; the two halves of a range get a suffix."""
    names = [row.constraint.name for row in rows]
    for i in range(1, len(rows)):
        if rows[i].constraint is rows[i - 1].constraint:
            names[i - 1 : i + 1] = [f"{names[i]}_upper", f"{names[i]}_lower"]
    return names
