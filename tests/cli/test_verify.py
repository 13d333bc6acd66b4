"""`rpopt verify`: 0 what holds, 1 what does not, 2 what cannot be read."""

import json
from dataclasses import replace
from pathlib import Path

from rpopt.io import read, write_json
from rpopt.plans import Plan
from tests.cases import medium_case
from tests.cli.command import Run, refused, save


def test_what_holds(run: Run, window_file: Path, plan_file: Path) -> None:
    answer = run("verify", window_file, plan_file, "--json")
    assert answer.code == 0
    (row,) = answer.json
    assert (row["file"], row["verified"]) == ("w.plan.json", True)
    assert row["J"] == read(plan_file, Plan).j
    assert "yes" in run("verify", window_file, plan_file).out


def test_what_does_not_hold(run: Run, window_file: Path, plan_file: Path) -> None:
    plan = read(plan_file, Plan)
    write_json(plan_file, replace(plan, j_ticks=plan.j_ticks - 1))
    answer = run("verify", window_file, plan_file)
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("rpopt: not verified: the plan says J = ")


def test_missing_bounds_do_not_hold(
    run: Run, window_file: Path, plan_file: Path
) -> None:
    plan = read(plan_file, Plan)
    for name in ("layout_bounds", "placement_bounds"):
        write_json(plan_file, replace(plan, **{name: ()}))
        assert run("verify", window_file, plan_file).code == 1
        assert run("show", plan_file, "--window", window_file).code == 0


def test_another_window(run: Run, tmp_path: Path, plan_file: Path) -> None:
    other = save(tmp_path / "other.npz", medium_case(1).window)
    for argv in (
        ("verify", other, plan_file),
        ("compare", other, plan_file),
        ("show", plan_file, "--window", other),
    ):
        refused(run(*argv), "give the window that was planned")


def test_damaged_plans(run: Run, window_file: Path, plan_file: Path) -> None:
    whole = json.loads(plan_file.read_text())
    whole["content"]["j_ticks"] -= 1
    plan_file.write_text(json.dumps(whole))
    refused(run("verify", window_file, plan_file), "does not match its digest")
    whole["schema"] = "rpopt.plan/7"
    plan_file.write_text(json.dumps(whole))
    refused(run("verify", window_file, plan_file), "'rpopt.plan/7'")
    plan_file.write_text(json.dumps(whole)[:1000])
    refused(run("verify", window_file, plan_file), str(plan_file), "truncated")


def test_the_files_the_wrong_way_round(
    run: Run, window_file: Path, plan_file: Path
) -> None:
    answer = run("verify", plan_file, window_file)
    refused(answer, "a Window cannot be checked against a Plan", "give a window")
