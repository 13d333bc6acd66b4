"""The certification studies run from tiny configurations, and their tables are sane."""

import csv
from pathlib import Path

import pytest

from experiments import certify_layout, certify_placement, certify_rows
from experiments.config import read_config
from experiments.lengths import KINDS, Lengths
from experiments.runner import run_all
from experiments.tables import RESULTS

CONFIGS = RESULTS.parent / "configs"


def test_the_rows_study_runs(data_dir: Path, tmp_path: Path) -> None:
    study = read_config(CONFIGS / "certify_rows_smoke.toml", certify_rows.Study)
    records = run_all(study.runs(), certify_rows.solve, out=tmp_path, config=study)
    certify_rows.refuse_wrong_claims(records)
    (row,) = certify_rows.class_table(records)
    assert (row["instances"], row["wrong claims"]) == (4, 0)
    (row,) = certify_rows.lengths_table(records)
    assert row["rows, dp=8"].isdigit()
    assert certify_rows.peer_table(records) == []


def test_the_layout_study_runs(data_dir: Path, tmp_path: Path) -> None:
    study = read_config(CONFIGS / "certify_layout_smoke.toml", certify_layout.Study)
    records = run_all(study.runs(), certify_layout.solve, out=tmp_path, config=study)
    (row,) = certify_layout.small_table(records)
    assert row["dp, ep, rows"] == "2, 2, 1"
    assert records[0]["lower"] <= records[0]["upper"]
    assert certify_layout.window_table(records) == []


def test_the_placement_study_runs(tmp_path: Path) -> None:
    pytest.importorskip("ortools", reason="CP-SAT comes with the extra peers")
    config = CONFIGS / "certify_placement_smoke.toml"
    study = read_config(config, certify_placement.Study)
    records = run_all(study.runs(), certify_placement.solve, out=tmp_path, config=study)
    (row,) = certify_placement.table(records)
    assert (row["layers"], row["closed"]) == (1, 1)
    assert {record["upper"] for record in records} == {records[0]["upper"]}
    assert max(r["lower"] for r in records) <= records[0]["upper"]
    assert row["CP-SAT above, %"] == row["HiGHS above, %"] == "0.0000 to 0.0000"


def test_a_wrong_claim_ends_the_study() -> None:
    record = {"instance": "x", "metrics": {"wrong": True}}
    with pytest.raises(SystemExit, match="wrong claims about x"):
        certify_rows.refuse_wrong_claims([record])


def test_no_wrong_claim_was_committed() -> None:
    with (RESULTS / "certify_rows.csv").open(encoding="utf-8") as file:
        assert {row["wrong claims"] for row in csv.DictReader(file)} == {"0"}


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_seeded_and_within_the_cap(kind: str) -> None:
    lengths = Lengths(kind=kind, samples=300, token_cap=4000)
    drawn = lengths.draw()
    assert (drawn.size, drawn.min() >= 1, drawn.max() <= 4000) == (300, True, True)
    assert (drawn == lengths.draw()).all()
    assert (
        drawn != Lengths(kind=kind, samples=300, token_cap=4000, seed=1).draw()
    ).any()
    assert lengths.instance(dp=8).num_ranks == 8
