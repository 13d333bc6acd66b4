"""The placement study: it runs, and window-aware placement wins on its own groups."""

import csv
from pathlib import Path

import pytest

from experiments import placement_gap
from experiments.placement_gap import METHODS, SWAPS, WINDOW, halves, load_groups
from rpopt.errors import InstanceError
from rpopt.io.reference import data_dir
from rpopt.placement.instance_window import evaluate_window

CONFIG = Path(placement_gap.__file__).parent / "configs" / "placement_gap_smoke.toml"


@pytest.fixture(autouse=True)
def _needs_data() -> None:
    try:
        data_dir()
    except InstanceError as error:
        pytest.skip(str(error))


def test_the_study_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    placement_gap.main(["--config", str(CONFIG), "--out", str(tmp_path)])
    with (tmp_path / "placement_gap.csv").open() as file:
        few, many = csv.DictReader(file)
    assert float(few[WINDOW]) < 0.95 * float(few[SWAPS])
    assert float(few[SWAPS]) > float(many[SWAPS])
    assert (tmp_path / "placement_gap.png").stat().st_size > 0
    with (tmp_path / "placement_joint.csv").open() as file:
        assert [row["window"] for row in csv.DictReader(file)][-1] == "geometric mean"


@pytest.mark.parametrize("name", placement_gap.LOADS)
def test_never_worse_than_aggregate_on_its_own_groups(name: str) -> None:
    groups = load_groups(name, 16)
    found, aggregate = (
        evaluate_window(groups, METHODS[m](groups, groups.demand_GLE)).total_L
        for m in (WINDOW, SWAPS)
    )
    assert (found <= aggregate).all()


def test_halves_share_out_the_samples() -> None:
    fit, judge = halves(0)
    assert len(fit) + len(judge) == len(placement_gap.routes())
    assert (fit.sum(axis=0) + judge.sum(axis=0)).tolist() == (
        placement_gap.routes().sum(axis=0).tolist()
    )
