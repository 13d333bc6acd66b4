"""`rpopt place`: a checked placement, its bound, and the baselines beside it."""

import json
from pathlib import Path

import numpy as np
import pytest

from rpopt.io import read, write_json
from rpopt.io.readers.expert_load import read_expert_load
from rpopt.placement.instance import PlacementInstance, check, evaluate
from rpopt.plans import Placement
from tests.cli.command import Run, refused
from tests.io.readers.test_expert_map import save as save_map

LOAD = [[9, 1, 1, 1], [0, 0, 0, 0], [4, 4, 3, 3], [1, 2, 3, 4]]
CONFIG = {
    "num_hidden_layers": 4,
    "moe_layer_freq": [1, 0, 1, 1],
    "num_experts": 4,
    "num_experts_per_tok": 1,
}


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    path = tmp_path / "load.csv"
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in LOAD))
    return path


def test_peaks_are_those_of_the_placement_written(run: Run, loads: Path) -> None:
    out = loads.with_name("p.json")
    answer = run("place", loads, "--ep=2", "--seed=0", "--out", out, "--json")
    assert answer.code == 0
    load = read_expert_load([loads])
    instance = PlacementInstance(load_LE=load.load_LE, num_ep_ranks=2)
    placement = read(out, Placement)
    assert not check(instance, placement)
    rows = answer.json["layers"]
    assert [row["layer"] for row in rows] == [0, 2, 3]
    assert [row["peak"] for row in rows] == [10, 7, 5]  # the best there is
    assert evaluate(instance, placement).peak_L.tolist() == [10, 7, 5]
    assert [row["identity"] for row in rows] == [10, 8, 7]
    assert all(row["bound"] <= row["peak"] <= row["EPLB"] for row in rows)
    (facts,) = answer.json["placement"]
    assert facts["peak"] == 22
    assert facts["closed"] == sum(row["bound"] == row["peak"] for row in rows)


@pytest.mark.parametrize("form", ["map", "placement"])
def test_moves_are_counted_from_the_current_placement(
    run: Run, loads: Path, form: str
) -> None:
    current = loads.with_name("current.json")
    if form == "map":
        save_map(current, [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]])
    else:
        write_json(current, Placement.identity(3, 4, 2))
    out = loads.with_name("p.json")
    argv = ("--ep=2", "--seed=0", "--current", current, "--out", out, "--json")
    answer = run("place", loads, *argv)
    assert answer.code == 0
    moved = [row["moved"] for row in answer.json["layers"]]
    assert moved == ([0, 0, 0] if form == "map" else [0, 2, 2])
    if form == "map":  # a placement that is best already stays, slot by slot
        expected = [[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 3, 1]]
        assert np.array_equal(read(out, Placement).slot_LE, expected)


def test_the_model_checks_the_layers(run: Run, loads: Path) -> None:
    model, out = loads.with_name("config.json"), loads.with_name("p.json")
    argv = ("place", loads, "--ep=2", "--seed=0", "--model", model, "--out", out)
    model.write_text(json.dumps(CONFIG))
    assert run(*argv).code == 0
    out.unlink()
    model.write_text(json.dumps(CONFIG | {"moe_layer_freq": 1}))
    refused(run(*argv), "load.csv", "layer 1 has no load")
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ("1,2,3\n", ("--ep=2",), ("3 experts", "ep = 2")),
        ("0,0\n", ("--ep=2",), ("load.csv", "every count is 0")),
        ("1,2\n", ("--ep=2", "--current=window.npz"), ("window.npz",)),
        ("1,2\n", ("--ep=2", "--current=p4.json"), ("placement",)),
    ],
)
def test_mistakes_leave_nothing_behind(
    run: Run,
    loads: Path,
    text: str,
    flags: tuple[str, ...],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(loads.parent)
    loads.write_text(text)
    write_json("p4.json", Placement.identity(1, 4, 2))
    out = loads.with_name("p.json")
    refused(run("place", loads, *flags, "--seed=0", "--out", out), *words)
    assert not out.exists()
