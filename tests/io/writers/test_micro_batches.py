"""The micro-batches of a plan come back from both kinds of files."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.errors import FileFormatError, InstanceError, MismatchError
from rpopt.io import read_schedule
from rpopt.io.writers.micro_batches import write_order
from rpopt.window import Window
from tests.cases import Case, cases, make_plan, medium_case

Ranks = list[list[list[int]]]
SUFFIXES = pytest.mark.parametrize("suffix", ["json", "npz"])


def read_order(path: Path) -> tuple[Ranks, list[int], dict[str, str]]:
    """Micro-batches, inverse and header, from the description of the format alone."""
    if path.suffix == ".json":
        whole = json.loads(path.read_text())
        return whole.pop("micro_batches"), whole.pop("position_N"), whole
    with np.load(path) as arrays:
        count_DR, header = arrays["count_DR"], json.loads(str(arrays["header"]))
        cells = np.split(arrays["sample_ids"], np.cumsum(count_DR)[:-1])
        flat = [cell.tolist() for cell in cells]
        rows = count_DR.shape[1]
        ranks = [flat[i : i + rows] for i in range(0, len(flat), rows)]
        return ranks, arrays["position_N"].tolist(), header


@settings(deadline=None, max_examples=40)
@given(cases())
def test_the_order_comes_back(case: Case) -> None:
    plan, window = make_plan(case), case.window
    ranks = [plan.micro_batches(window, rank=r) for r in range(plan.topology.dp)]
    gathered = [sample for rank in ranks for row in rank for sample in row]
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("json", "npz"):
            path = Path(folder) / f"order.{suffix}"
            write_order(path, plan, window)
            found, position_N, header = read_order(path)
            assert found == ranks
            assert [gathered[p] for p in position_N] == list(range(window.num_samples))
            assert header == {
                "schema": "rpopt.micro-batches/1",
                "window": window.digest,
                "plan": plan.digest,
            }
        assert len(list(Path(folder).iterdir())) == 2


@SUFFIXES
def test_dropped_samples_have_no_place(suffix: str, tmp_path: Path) -> None:
    case = medium_case(token_cap=60, oversize="drop")
    plan, path = make_plan(case), tmp_path / f"order.{suffix}"
    write_order(path, plan, case.window)
    ranks, position_N, _ = read_order(path)
    kept = sorted(sample for rank in ranks for row in rank for sample in row)
    dropped = np.flatnonzero(-(-case.window.length_N // 4) * 4 > 60)
    assert dropped.size
    assert np.flatnonzero(np.array(position_N) == -1).tolist() == dropped.tolist()
    assert sorted({*kept, *dropped.tolist()}) == list(range(40))


def test_a_written_order_is_a_schedule_to_compare_with(tmp_path: Path) -> None:
    case, path = medium_case(), tmp_path / "order.json"
    plan = make_plan(case)
    write_order(path, plan, case.window)
    assert read_schedule(path) == read_order(path)[0]
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"schema": "rpopt.micro-batches/2"}))
    with pytest.raises(FileFormatError, match="micro-batches/2"):
        read_schedule(path)


@SUFFIXES
def test_bad_input_is_named_and_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    case, path = medium_case(), tmp_path / f"order.{suffix}"
    plan = make_plan(case)
    with pytest.raises(MismatchError, match="the plan is for window"):
        write_order(path, plan, Window(length_N=[1, 2]))
    for name in ("order", "order.pt"):
        with pytest.raises(InstanceError, match=r"must end in \.json or \.npz"):
            write_order(tmp_path / name, plan, case.window)
    with pytest.raises(FileFormatError, match=r"none.*cannot be written"):
        write_order(tmp_path / "none" / path.name, plan, case.window)
    assert not list(tmp_path.iterdir())
