"""Linear and mixed-integer models as arrays: the input of the solver driver.

Axis letters: C columns (variables), M rows (constraints), Z nonzeros of the matrix.
Nothing here talks to a solver: a model can be built, checked against a point and
written to a file with NumPy alone.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.records import BoolArray, Int64Array, Record, freeze, int_array

FloatArray = npt.NDArray[np.float64]

ROW_TOLERANCE = 1e-6
"""Absolute slack of rows and bounds that hold continuous columns."""
_INFINITE = 1e20  # HiGHS reads larger bounds as infinite
_LARGEST = 1e15  # HiGHS refuses coefficients from here on
_SMALLEST = 1e-9  # HiGHS silently drops coefficients up to here
_EXACT = 2.0**53  # doubles are exact integers up to here


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearModel(Record):
    """Minimise or maximise cost·x + offset over rows, bounds and integrality.

    Parameters
    ----------
    col_cost, col_lower, col_upper
        Shape (C,): cost and bounds of each column; bounds may be infinite.
    integrality
        Shape (C,), bool: which columns take whole values.
    row_lower, row_upper
        Shape (M,): bounds of each row; at least one of the two is finite.
    starts, rows, coefs
        The matrix by columns: column j holds rows[starts[j]:starts[j+1]] (increasing)
        with the nonzero coefs at the same places; shapes (C+1,), (Z,), (Z,).
    offset
        Constant of the objective.
    maximize
        The sense.
    integral_objective
        A promise of the modeller: the optimum is a whole number, so that a bound may
        be rounded to the next one. It need not hold for every feasible point.
    col_names, row_names
        Names for files and messages; empty, or C and M of them.

    Raises
    ------
    InstanceError
        For shapes that do not match, values that are not numbers, and coefficients
        that HiGHS would change or refuse.
    """

    SCHEMA: ClassVar[str] = "rpopt.linear_model/1"

    col_cost: FloatArray
    col_lower: FloatArray
    col_upper: FloatArray
    integrality: BoolArray
    row_lower: FloatArray
    row_upper: FloatArray
    starts: Int64Array
    rows: Int64Array
    coefs: FloatArray
    offset: float = 0.0
    maximize: bool = False
    integral_objective: bool = False
    col_names: tuple[str, ...] = ()
    row_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check and freeze every array."""
        cost = float_array(self.col_cost, "col_cost")
        num_col = len(cost)
        if num_col == 0:
            raise InstanceError("a linear model needs at least one column; it has none")
        freeze(self, "col_cost", cost)
        _require(np.isfinite(cost) & (np.abs(cost) < _LARGEST), cost, "col_cost")
        _freeze_bounds(self, "col", num_col)
        integrality = np.array(self.integrality, dtype=np.bool_)
        if integrality.shape != (num_col,):
            raise InstanceError(
                f"integrality has shape {integrality.shape}; {num_col} columns need"
                f" ({num_col},)"
            )
        integrality.setflags(write=False)
        freeze(self, "integrality", integrality)
        num_row = len(float_array(self.row_lower, "row_lower"))
        _freeze_bounds(self, "row", num_row)
        free = np.isinf(self.row_lower) & np.isinf(self.row_upper)
        if free.any():
            raise InstanceError(
                f"row {int(free.argmax())} has no finite side; leave it out"
            )
        columns = column_arrays(self.starts, self.rows, self.coefs, num_col, num_row)
        for name, array in zip(("starts", "rows", "coefs"), columns, strict=True):
            freeze(self, name, array)
        freeze(self, "offset", float(self.offset))
        if not math.isfinite(self.offset):
            raise InstanceError(f"offset = {self.offset} is not finite")
        for axis, names, num in (
            ("col", self.col_names, num_col),
            ("row", self.row_names, num_row),
        ):
            freeze(self, f"{axis}_names", tuple(names))
            if len(names) not in (0, num):
                raise InstanceError(f"{len(names)} {axis}_names for {num} {axis}s")

    @classmethod
    def from_triplets(
        cls,
        *,
        rows: npt.ArrayLike,
        cols: npt.ArrayLike,
        values: npt.ArrayLike,
        **fields: Any,
    ) -> "LinearModel":
        """Build a model from (row, column, value) triplets in any order, zeros dropped.

        Parameters
        ----------
        rows, cols, values
            Shape (Z,) each; a (row, column) pair may appear once.
        **fields
            The other fields of the model.
        """
        num_col = len(np.asarray(fields["col_cost"]))
        row_Z = int_array(rows, name="rows", ndim=1, minimum=0)
        col_Z = int_array(cols, name="cols", ndim=1, minimum=0)
        value_Z = float_array(values, "values")
        if not len(row_Z) == len(col_Z) == len(value_Z):
            raise InstanceError(
                f"{len(row_Z)} rows, {len(col_Z)} cols, {len(value_Z)} values; triplets"
                " need as many of each"
            )
        if len(col_Z) and int(col_Z.max()) >= num_col:
            raise InstanceError(f"cols holds {int(col_Z.max())}; C = {num_col}")
        order = np.lexsort((row_Z, col_Z))
        order = order[value_Z[order] != 0]
        counts = np.bincount(col_Z[order], minlength=num_col)
        starts = np.concatenate(([0], np.cumsum(counts)))
        return cls(starts=starts, rows=row_Z[order], coefs=value_Z[order], **fields)

    @property
    def num_col(self) -> int:
        """Number of columns C."""
        return len(self.col_cost)

    @property
    def num_row(self) -> int:
        """Number of rows M."""
        return len(self.row_lower)

    def relaxed(self) -> "LinearModel":
        """Return the model without integrality (and without an integral optimum)."""
        none = np.zeros(self.num_col, dtype=np.bool_)
        return dataclasses.replace(self, integrality=none, integral_objective=False)

    def objective(self, x: FloatArray) -> int | float:
        """Return cost·x + offset; an int, exact, when all the terms are integers."""
        used = self.col_cost != 0
        cost, point = self.col_cost[used], x[used]
        terms = np.append(cost, self.offset)
        if self.integrality[used].all() and _whole(terms).all() and _whole(point).all():
            pairs = zip(_ints(cost), _ints(point), strict=True)
            return sum((c * v for c, v in pairs), int(self.offset))
        return math.fsum([*(cost * point).tolist(), self.offset])


def float_array(value: npt.ArrayLike, name: str) -> FloatArray:
    """Return a read-only copy of a vector of floats without NaN."""
    array: FloatArray = np.array(value, dtype=np.float64) + 0.0  # no negative zeros
    if array.ndim != 1:
        raise InstanceError(f"{name} has shape {array.shape}; it needs one axis")
    _require(~np.isnan(array), array, name)
    array.setflags(write=False)
    return array


def column_arrays(
    starts: npt.ArrayLike,
    rows: npt.ArrayLike,
    values: npt.ArrayLike,
    num_col: int,
    num_row: int,
) -> tuple[Int64Array, Int64Array, FloatArray]:
    """Check and freeze a matrix given by columns; see `LinearModel`."""
    start_C1 = int_array(starts, name="starts", ndim=1, minimum=0)
    row_Z = int_array(rows, name="rows", ndim=1, minimum=0)
    value_Z = float_array(values, "values")
    if not (
        len(start_C1) == num_col + 1
        and start_C1[0] == 0
        and start_C1[-1] == len(row_Z) == len(value_Z)
        and (np.diff(start_C1) >= 0).all()
    ):
        raise InstanceError(
            f"starts must rise from 0 to the number of nonzeros in {num_col + 1} steps;"
            f" got {len(start_C1)} starts, {len(row_Z)} rows, {len(value_Z)} values"
        )
    if len(row_Z) and int(row_Z.max()) >= num_row:
        raise InstanceError(f"rows holds {int(row_Z.max())}; M = {num_row}")
    inner = np.ones(max(0, len(row_Z) - 1), dtype=np.bool_)
    cuts = start_C1[1:-1]
    inner[cuts[(cuts > 0) & (cuts < len(row_Z))] - 1] = False
    bad = inner & (np.diff(row_Z) <= 0)
    if bad.any():
        column = int(np.searchsorted(start_C1, int(bad.argmax()), side="right")) - 1
        raise InstanceError(
            f"the rows of column {column} do not increase; sort them and merge doubles"
        )
    size = np.abs(value_Z)
    _require((size > _SMALLEST) & (size < _LARGEST), value_Z, "values")
    return start_C1, row_Z, value_Z


def bounds_arrays(
    lower: npt.ArrayLike, upper: npt.ArrayLike, num: int, what: str
) -> tuple[FloatArray, FloatArray]:
    """Check and freeze a pair of bound vectors, shape (num,) each."""
    frozen = []
    for side, value in (("lower", lower), ("upper", upper)):
        array = float_array(value, f"{what}_{side}")
        if len(array) != num:
            raise InstanceError(f"{what}_{side} has {len(array)} entries, not {num}")
        array = np.where(np.abs(array) >= _INFINITE, np.copysign(np.inf, array), array)
        array.setflags(write=False)
        frozen.append(array)
    low, high = frozen
    bad = (low > high) | (low == np.inf) | (high == -np.inf)
    if bad.any():
        j = int(bad.argmax())
        raise InstanceError(f"{what} {j} has bounds [{low[j]}, {high[j]}]: none fits")
    return low, high


def _freeze_bounds(model: LinearModel, axis: str, num: int) -> None:
    lower, upper = getattr(model, f"{axis}_lower"), getattr(model, f"{axis}_upper")
    low, high = bounds_arrays(lower, upper, num, axis)
    freeze(model, f"{axis}_lower", low)
    freeze(model, f"{axis}_upper", high)


def _require(good: BoolArray, array: FloatArray, name: str) -> None:
    if not good.all():
        j = int((~good).argmax())
        raise InstanceError(
            f"{name}[{j}] = {array[j]} cannot be passed on: costs and coefficients need"
            f" a size below {_LARGEST:g} (nonzeros above {_SMALLEST:g}); rescale"
        )


def _whole(array: FloatArray) -> BoolArray:
    whole: BoolArray = (array == np.rint(array)) & (np.abs(array) <= _EXACT)
    return whole | np.isinf(array)


def _ints(array: FloatArray) -> list[int]:
    return [int(v) for v in array.tolist()]


# ---------------------------------------------------------------- checking a point


def rounded(model: LinearModel, x: npt.ArrayLike) -> FloatArray:
    """Return x with integer columns rounded and tiny bound violations clipped away."""
    point = float_array(x, "x").copy()
    if len(point) != model.num_col:
        raise InstanceError(f"x has {len(point)} entries, not C = {model.num_col}")
    point[model.integrality] = np.rint(point[model.integrality])
    clipped = np.clip(point, model.col_lower, model.col_upper)
    near = ~model.integrality & (np.abs(clipped - point) <= ROW_TOLERANCE)
    return np.where(near, clipped, point) + 0.0


def first_violation(model: LinearModel, x: FloatArray) -> str | None:
    """Return what is broken at x, or None when x is feasible.

    Rows whose data and columns are all integers are evaluated in integers and may not
    be off by anything; other rows may be off by `ROW_TOLERANCE` and rounding noise.

    Parameters
    ----------
    model
        The model.
    x
        Shape (C,), as returned by `rounded`.
    """
    if not np.isfinite(x).all():
        return f"column {_name(model, int((~np.isfinite(x)).argmax()))} is not finite"
    fraction = model.integrality & (x != np.rint(x))
    outside = (x < model.col_lower) | (x > model.col_upper)
    for bad, why in ((fraction, "is not whole"), (outside, "is out of bounds")):
        if bad.any():
            j = int(bad.argmax())
            box = f"[{model.col_lower[j]}, {model.col_upper[j]}]"
            return f"column {_name(model, j)} = {x[j]!r} {why} {box}"
    slack_M, activity_M = _slacks(model, x)
    bad = (
        activity_M < model.row_lower - slack_M
    )  # Python compares int and float exactly
    bad |= activity_M > model.row_upper + slack_M
    if bad.any():
        i = int(bad.argmax())
        name = model.row_names[i] if model.row_names else f"r{i}"
        box = f"[{model.row_lower[i]}, {model.row_upper[i]}]"
        return f"row {name} holds {activity_M[i]} outside {box}; {int(bad.sum())} rows"
    return None


def _slacks(model: LinearModel, x: FloatArray) -> tuple[FloatArray, Any]:
    """Return the allowed slack and the activity of each row (exact where integral)."""
    col_Z = np.repeat(np.arange(model.num_col), np.diff(model.starts))
    whole_Z = model.integrality[col_Z] & _whole(model.coefs)
    exact_M = _whole(model.row_lower) & _whole(model.row_upper)
    exact_M[model.rows[~whole_Z]] = False
    size_M = _sums(model.num_row, model.rows, np.abs(model.coefs * x[col_Z]))
    slack_M = np.where(exact_M, 0.0, ROW_TOLERANCE + 1e-12 * size_M)
    activity_M = _sums(model.num_row, model.rows, model.coefs * x[col_Z])
    pick_Z = exact_M[model.rows]
    if float(size_M[exact_M].max(initial=0.0)) < _EXACT:
        return slack_M, activity_M  # every partial sum is an integer below 2^53: exact
    exact = activity_M.astype(object)
    exact[exact_M] = 0
    pairs = zip(_ints(model.coefs[pick_Z]), _ints(x[col_Z[pick_Z]]), strict=True)
    for i, (a, v) in zip(model.rows[pick_Z].tolist(), pairs, strict=True):
        exact[i] += a * v
    return slack_M, exact


def _sums(num: int, index: Int64Array, weights: FloatArray) -> FloatArray:
    return np.bincount(index, weights=weights, minlength=num)[:num].astype(np.float64)


def _name(model: LinearModel, j: int) -> str:
    return model.col_names[j] if model.col_names else f"c{j}"
