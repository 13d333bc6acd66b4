"""`rpopt calibrate`: measured times in, a cost model out."""

from pathlib import Path

import pytest

from rpopt.cli.settings import _read_tables
from tests.cli.command import Run

LINE = "{{'tokens': {0}, 'tokens_squared': {1}, 'copies': {2}, 'seconds': {3}}}\n"


def table(folder: Path) -> Path:
    lines = []
    for tokens, spread in ((100, 1), (200, 3), (300, 2), (400, 1), (500, 5)):
        squared, copies = tokens**2 // spread, tokens * 8 * (1 + spread)
        seconds = 1e-5 + 1e-6 * tokens + 1e-8 * squared + 1e-7 * copies
        lines.append(LINE.format(tokens, squared, copies, seconds).replace("'", '"'))
    path = folder / "times.jsonl"
    path.write_text("".join(lines))
    return path


def test_a_cost_model(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "cost.toml"
    size = ("--top-k", 8, "--moe-layers", 1, "--length", 1000)
    answer = run("calibrate", table(tmp_path), *size, "--out", out, "--json")
    assert answer.code == 0
    (model,) = answer.json["cost model"]
    assert model["c1_ns"] == pytest.approx(1e3)
    assert model["c2_ns"] == pytest.approx(10)
    assert model["expert_per_copy_ns"] == pytest.approx(100)
    assert model["omega_at_1000_tokens"] == pytest.approx(11e-3 / (11e-3 + 0.8e-3))
    assert _read_tables(out)["cost"]["unit"] == "s"


def test_a_file_that_is_no_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    answer = run("calibrate", tmp_path / "x.csv")
    assert answer.code == 2
    assert "x.csv" in answer.err
