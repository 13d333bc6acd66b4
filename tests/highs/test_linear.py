"""Models as arrays: what is refused, exact checks, files."""

import dataclasses
import gzip
import pickle
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.highs import LinearModel, archive_mps, first_violation, rounded, solve
from tests.highs.models import dense, knapsack, makespan, packing, placed

INF = np.inf


def base() -> LinearModel:
    return dense([1, 2], [[1, 1], [1, 0]], [1, -INF], [INF, 5], upper=9)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"col_cost": [1]}, "col_lower has 2 entries, not 1"),
        ({"col_cost": []}, "at least one column"),
        ({"col_cost": [1, INF]}, r"col_cost\[1\]"),
        ({"col_cost": [1, np.nan]}, r"col_cost\[1\]"),
        ({"col_lower": [0, 10]}, "col 1 has bounds"),
        ({"col_lower": [0, INF], "col_upper": [1, INF]}, "col 1"),
        ({"integrality": [True]}, "integrality"),
        ({"row_lower": [1, 6]}, "row 1 has bounds"),
        ({"row_upper": [INF, INF]}, "row 1 has no finite side"),
        ({"rows": [1, 0, 0]}, "column 0 do not increase"),
        ({"rows": [0, 0, 0]}, "column 0 do not increase"),
        ({"rows": [0, 2, 0]}, "M = 2"),
        ({"starts": [0, 2]}, "starts"),
        ({"starts": [0, 2, 4]}, "starts"),
        ({"coefs": [1, 1e15, 1]}, r"values\[1\]"),
        ({"coefs": [1, 1e-9, 1]}, r"values\[1\]"),
        ({"coefs": [1, 0, 1]}, r"values\[1\]"),
        ({"offset": INF}, "offset"),
        ({"col_names": ("a",)}, "col_names"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InstanceError, match=match):
        dataclasses.replace(base(), **changes)


def test_triplets_come_in_any_order_but_once() -> None:
    fields = {
        "col_cost": [1, 1],
        "col_lower": [0, 0],
        "col_upper": [1, 1],
        "integrality": [0, 0],
        "row_lower": [0, 0],
        "row_upper": [1, 1],
    }
    triplets = {"rows": [1, 0, 0, 1], "cols": [1, 0, 1, 0], "values": [4, 1, 2, 0]}
    model = LinearModel.from_triplets(**triplets, **fields)
    assert model.starts.tolist() == [0, 1, 3]
    assert model.rows.tolist() == [0, 0, 1]
    assert model.coefs.tolist() == [1, 2, 4]
    with pytest.raises(InstanceError, match="merge doubles"):
        LinearModel.from_triplets(rows=[0, 0], cols=[0, 0], values=[1, 2], **fields)
    with pytest.raises(InstanceError, match="C = 2"):
        LinearModel.from_triplets(rows=[0], cols=[2], values=[1], **fields)


def test_arrays_are_copies_and_read_only() -> None:
    cost = np.array([1.0, 2.0])
    model = dense(cost, [[1, 1]], [0], [1])  # type: ignore[arg-type]
    cost[0] = 7
    assert model.col_cost[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        model.col_cost[0] = 3


def test_equal_models_have_equal_digests() -> None:
    model = knapsack()
    assert pickle.loads(pickle.dumps(model)).digest == model.digest
    assert model.digest == knapsack().digest
    assert model.digest != knapsack(seed=1).digest
    assert model.digest != dataclasses.replace(model, maximize=False).digest
    assert dense([0.0], [[1]], [0], [1]) == dense([-0.0], [[1]], [0], [1])


def test_bounds_from_1e20_on_are_infinite() -> None:
    model = dense([1], [[1]], [-1e20], [5], upper=1e30)
    assert model.row_lower[0] == -INF
    assert model.col_upper[0] == INF


# ------------------------------------------------------------------------ the check


def test_integer_rows_may_not_be_off_by_one_in_ten_million() -> None:
    weights, cap = [5_000_000, 5_000_001], 10_000_000
    model = packing(weights, cap, 2)
    assert "row r2" in str(first_violation(model, placed(weights, 2, [0, 0])))
    assert first_violation(model, placed(weights, 2, [0, 1])) is None


@pytest.mark.parametrize("excess", [0, 1])
def test_sums_beyond_doubles_are_exact(excess: int) -> None:
    big = 2**52  # 3 * 2^52 + 1 is not a double
    model = dense(
        [0] * 5,
        [[10**9, 10**9, -1, 0, 0], [0, 0, 1, 1, 1]],
        [-INF, -INF],
        [2**51, 2**53],
        upper=2.0**53,
        integer=True,
    )
    x = np.array([9_007_199, 0, 9_007_199 * 10**9 - 2**51 - excess, 0, 0], dtype=float)
    assert (first_violation(model, x) is None) == (excess == 0)
    full = dense([0] * 3, [[1, 1, 1]], [-INF], [2**53], upper=2.0**53, integer=True)
    y = np.array([big, big, excess], dtype=float)
    assert (first_violation(full, y) is None) == (excess == 0)


def test_rows_with_continuous_columns_have_a_small_slack() -> None:
    model = makespan([3, 2], 1)
    assert first_violation(model, np.array([1, 1, 5 - 1e-7])) is None
    assert "row r2" in str(first_violation(model, np.array([1, 1, 5 - 1e-5])))


@pytest.mark.parametrize(
    ("x", "said"),
    [([0.5, 1], "not whole"), ([10, 0], "out of bounds"), ([np.inf, 0], "finite")],
)
def test_columns_are_checked(x: list[float], said: str) -> None:
    model = dense([1, 1], [[1, 1]], [0], [99], upper=9, integer=True)
    assert said in str(first_violation(model, np.array(x)))


def test_rounding_clips_only_noise() -> None:
    model = dense([1, 1], [[1, 1]], [0], [99], upper=1, integer=[True, False])
    assert rounded(model, [0.9999999, 1 + 1e-8]).tolist() == [1, 1]
    assert rounded(model, [1.2, 1.1]).tolist() == [1, 1.1]
    with pytest.raises(InstanceError, match="C = 2"):
        rounded(model, [1])


def test_objectives_of_integers_are_integers() -> None:
    model = dense(
        [10**14, 1], [[1, 1]], [0], [INF], upper=2.0**40, integer=True, offset=3
    )
    value = model.objective(np.array([10**9, 7], dtype=float))
    assert isinstance(value, int)
    assert value == 10**23 + 10
    assert isinstance(model.relaxed().objective(np.array([1.0, 7.0])), float)


# ---------------------------------------------------------------------------- files


def odd() -> LinearModel:
    """Every kind of row and bound."""
    return dense(
        [0.1, -2, 3, 1e-3],
        [[1, 0.1, 0, 0], [0, 3, 1 / 3, 0], [1, 1, 1, 1], [2, 0, 0, 1]],
        [2, -4, -INF, 0.5],
        [2, 8, 7, INF],
        lower=[-INF, 0, -3, -1],
        upper=[INF, 1, -1, 12.5],
        integer=[False, True, True, False],
        offset=0.7,
        maximize=True,
        col_names=("x[1]", "y", "z", "w"),
        row_names=("a", "b", "c", "d"),
    )


def test_archived_models_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    first = archive_mps(odd(), tmp_path / "a")
    second = archive_mps(odd(), tmp_path / "b")
    assert first.name == f"{odd().digest}.mps.gz"
    assert first.read_bytes() == second.read_bytes()
    assert archive_mps(odd(), tmp_path / "a") == first
    assert [p.name for p in (tmp_path / "a").iterdir()] == [first.name]


def test_an_archived_model_reads_back_unchanged(tmp_path: Path) -> None:
    model = odd()
    lp = read_back(model, tmp_path)
    assert np.array_equal(lp.col_cost_, model.col_cost)
    assert np.array_equal(lp.col_lower_, model.col_lower)
    assert np.array_equal(lp.col_upper_, model.col_upper)
    assert np.array_equal(lp.row_lower_, model.row_lower)
    assert np.array_equal(lp.row_upper_, model.row_upper)
    assert np.array_equal(lp.a_matrix_.start_, model.starts)
    assert np.array_equal(lp.a_matrix_.index_, model.rows)
    assert np.array_equal(lp.a_matrix_.value_, model.coefs)
    assert [k == highspy.HighsVarType.kInteger for k in lp.integrality_] == list(
        model.integrality
    )
    assert lp.sense_ == highspy.ObjSense.kMaximize
    assert lp.offset_ == model.offset
    assert tuple(lp.col_names_) == model.col_names
    assert tuple(lp.row_names_) == model.row_names


def test_an_archived_model_has_the_same_optimum(tmp_path: Path) -> None:
    model = knapsack(12)
    lp = read_back(model, tmp_path)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.passModel(lp)
    solver.run()
    found = solver.getInfo().objective_function_value
    assert found == pytest.approx(solve(model, time_limit_s=20).objective)


@pytest.mark.parametrize("names", [("a b", "c"), ("a", "a"), ("", "b"), ("obj_", "b")])
def test_names_that_files_cannot_hold_are_numbered(
    names: tuple[str, str], tmp_path: Path
) -> None:
    model = dataclasses.replace(base(), col_names=names)
    text = gzip.decompress(archive_mps(model, tmp_path).read_bytes()).decode()
    assert " c1 obj_ 2.0\n" in text


def read_back(model: LinearModel, folder: Path) -> Any:
    path = folder / "model.mps"
    path.write_bytes(gzip.decompress(archive_mps(model, folder).read_bytes()))
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    return solver.getLp()
