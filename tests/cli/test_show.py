"""`rpopt show`: windows and plans, as tables and as JSON."""

from pathlib import Path

import numpy as np
import pytest

from rpopt.io import read, write_json
from rpopt.plans import Plan
from rpopt.reporting import report
from tests.cases import medium_case
from tests.cli.command import Run, refused


def test_a_window(run: Run, window_file: Path) -> None:
    sections = run("show", window_file, "--json").json
    window = medium_case().window
    (facts,) = sections["window"]
    assert (facts["samples"], facts["tokens"]) == (40, window.total_tokens)
    (quantiles,) = sections["length"]
    assert quantiles["p50"] == int(np.quantile(window.length_N, 0.5))
    assert quantiles["p100"] == window.length_N.max()
    assert window.demand_NLE is not None
    total_LE = window.demand_NLE.sum(axis=0)
    for row, total_E in zip(sections["layers"], total_LE, strict=True):
        assert row["hottest_over_mean"] == pytest.approx(total_E.max() / total_E.mean())
        assert row["silent_experts"] == (total_E == 0).sum()
    answer = run("show", window_file)
    assert answer.out.startswith("# window\n")
    assert "# layers" in answer.out


def test_a_plan(run: Run, window_file: Path, plan_file: Path) -> None:
    sections = run("show", plan_file, "--window", window_file, "--json").json
    plan, window = read(plan_file, Plan), medium_case().window
    measured = report(window, plan)
    (facts,) = sections["plan"]
    assert (facts["J"], facts["fill"]) == (plan.j, measured.fill)
    assert sum(row["J"] for row in sections["cost"]) == pytest.approx(plan.j)
    assert sum(row["share"] for row in sections["cost"]) == pytest.approx(1)
    assert len(sections["rows"]) == plan.layout.num_rows
    assert max(row["J"] for row in sections["shards"]) == pytest.approx(plan.j)
    assert measured.placement_cost is not None
    for i, row in enumerate(sections["layers"]):
        assert row["aggregate_peak"] == measured.placement_cost.peak_L[i]
        assert row["peak_bound"] == plan.placement_bounds[i].value
        assert row["moved"] is None
    assert sections["notes"]


def test_moves_from_the_placement_in_force(
    run: Run, window_file: Path, plan_file: Path
) -> None:
    argv = ("show", plan_file, "--window", window_file, "--current", plan_file)
    layers = run(*argv, "--json").json["layers"]
    assert [row["moved"] for row in layers] == [0, 0, 0]


def test_a_plan_needs_its_window(run: Run, plan_file: Path) -> None:
    refused(run("show", plan_file), str(plan_file), "give its window with --window")


def test_other_files_are_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    write_json(path, medium_case().topology)
    refused(run("show", path), "holds a Topology; show takes a window or a plan")
