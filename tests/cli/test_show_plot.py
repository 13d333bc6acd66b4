"""`rpopt show --plot`: figures whole or not at all."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rpopt.io import read, write_json
from rpopt.plans import Plan
from rpopt.window import Window
from tests.cases import make_plan, medium_case
from tests.cli.command import SETTINGS, Run, refused, save

SIGNATURES = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The y labels of the panels that are drawn."""
    plotting = pytest.importorskip("rpopt.plotting", reason="needs the plot extra")
    labels: list[str] = []
    save = plotting.save_panels

    def save_and_note(panels: list, file: object, file_format: str) -> None:
        noted = [
            lambda ax, panel=panel: (panel(ax), labels.append(ax.get_ylabel()))
            for panel in panels
        ]
        save(noted, file, file_format)

    monkeypatch.setattr(plotting, "save_panels", save_and_note)
    return labels


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_the_suffix_says_the_format(
    run: Run, window_file: Path, plan_file: Path, suffix: str, panels: list[str]
) -> None:
    path = plan_file.with_name(f"figure{suffix}")
    answer = run("show", plan_file, "--window", window_file, "--plot", path)
    assert answer.code == 0
    assert "# plan" in answer.out
    assert path.read_bytes().startswith(SIGNATURES[suffix])
    assert panels == ["EP-rank load over mean (smallest to largest)", "row"]


def test_the_history_of_a_search_is_a_third_panel(
    run: Run, tmp_path: Path, window_file: Path, panels: list[str]
) -> None:
    argv = ("--seed=0", "--max-sweeps=3", *SETTINGS, "--save-history")
    assert run("plan", window_file, "--out-dir", tmp_path, *argv).code == 0
    history = tmp_path / "w.history.csv"
    plan = read(tmp_path / "w.plan.json", Plan)
    header, *rows = history.read_text().splitlines()
    assert header == "seconds,J"
    best = [float(row.split(",")[1]) for row in rows]
    assert best == sorted(best, reverse=True)
    assert best[-1] == pytest.approx(plan.j)
    argv = ("--window", window_file, "--history", history, "--plot", tmp_path / "a.png")
    assert run("show", tmp_path / "w.plan.json", *argv).code == 0
    assert panels[2] == "J (1 is perfect balance)"


@pytest.mark.parametrize("name", ["figure.xyz", "figure", "missing/figure.png"])
def test_files_that_cannot_be_written_are_refused(
    run: Run, window_file: Path, plan_file: Path, name: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs the plot extra")
    before, path = sorted(plan_file.parent.iterdir()), plan_file.parent / name
    answer = run("show", plan_file, "--window", window_file, "--plot", path)
    words = "cannot be written" if "/" in name else ".pdf, .png, .svg"
    refused(answer, str(path), words)
    assert sorted(plan_file.parent.iterdir()) == before


def test_without_matplotlib_the_extra_is_named(
    run: Run, window_file: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.startswith("rpopt.plotting")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("rpopt.plotting", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = plan_file.with_name("figure.png")
    refused(
        run("show", plan_file, "--window", window_file, "--plot", path),
        "install rpopt[plot]",
    )
    assert not path.exists()


def test_a_figure_that_fails_halfway_leaves_nothing(
    run: Run, window_file: Path, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plotting = pytest.importorskip("rpopt.plotting", reason="needs the plot extra")

    def fail(panels: object, file: object, file_format: str) -> None:
        file.write(b"half a figure")
        raise OSError("no room")

    monkeypatch.setattr(plotting, "save_panels", fail)
    before = sorted(plan_file.parent.iterdir())
    path = plan_file.with_name("figure.png")
    refused(run("show", plan_file, "--window", window_file, "--plot", path), "no room")
    assert sorted(plan_file.parent.iterdir()) == before


def test_what_cannot_be_drawn_is_said(
    run: Run, tmp_path: Path, window_file: Path, plan_file: Path
) -> None:
    figure, both = tmp_path / "a.png", (plan_file, "--window", window_file)
    refused(run("show", window_file, "--plot", figure), "--plot draws a plan")
    refused(run("show", *both, "--history", "h.csv"), "--plot")
    table = tmp_path / "h.csv"
    argv = (*both, "--plot", figure, "--history", table)
    refused(run("show", *argv), "no such file")
    table.write_text("a,b\n1,2\n")
    refused(run("show", *argv), str(table), "--save-history")
    table.write_text("seconds,J\n1,one\n")
    refused(run("show", *argv), str(table), "damaged")
    assert not figure.exists()


def test_a_plan_without_routes_has_cells_alone(
    run: Run, tmp_path: Path, panels: list[str]
) -> None:
    window = Window(length_N=medium_case().window.length_N)
    write_json(tmp_path / "p.json", make_plan(replace(medium_case(), window=window)))
    argv = ("--window", save(tmp_path / "w.npz", window), "--plot", tmp_path / "a.svg")
    assert run("show", tmp_path / "p.json", *argv).code == 0
    assert panels == ["row"]
