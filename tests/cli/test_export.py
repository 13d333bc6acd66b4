"""`rpopt export`."""

import json
from pathlib import Path

import numpy as np
import pytest

from rpopt.io import read, write_json
from rpopt.plans import Plan
from tests.cases import make_plan, medium_case
from tests.cli.command import Run, refused, save, shorter

CONFIG = {
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
MAPS = ("sglang", "vllm", "vllm-ascend", "deepseek")
maps = pytest.mark.parametrize("form", MAPS)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Three MoE layers after a dense one, as `medium_case` has them."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def out_file(folder: Path, form: str) -> Path:
    return folder / "maps" / f"map.{'npz' if form == 'deepseek' else 'json'}"


@maps
def test_a_map_is_written(
    form: str, run: Run, plan_file: Path, config: Path, tmp_path: Path
) -> None:
    out = out_file(tmp_path, form)
    answer = run(
        *("export", form, plan_file, "--model", config),
        *("--ep", 2, "--out", out, "--json"),
    )
    assert answer.code == 0, answer.err
    assert answer.json == [{"file": out.name, "MoE_layers": 3, "experts": 8, "ep": 2}]
    assert list(out.parent.iterdir()) == [out]


def test_the_map_is_that_of_the_plan(run: Run, plan_file: Path, tmp_path: Path) -> None:
    assert run("export", "vllm", plan_file, "--out", tmp_path / "m.json").code == 0
    placement = read(plan_file, Plan).placement
    assert placement is not None
    expert_LE = json.loads((tmp_path / "m.json").read_text())
    assert np.array_equal(expert_LE, placement.expert_of_slot_LE)
    write_json(tmp_path / "p.json", placement)
    again = run("export", "vllm", tmp_path / "p.json", "--out", tmp_path / "n.json")
    assert again.code == 0
    assert (tmp_path / "n.json").read_bytes() == (tmp_path / "m.json").read_bytes()


@maps
def test_bad_maps_are_refused(
    form: str, run: Run, plan_file: Path, config: Path, tmp_path: Path
) -> None:
    out = out_file(tmp_path, form)
    good = ("export", form, plan_file, "--model", config)
    refused(run(*good, "--out", out, "--ep", 4), "2 EP ranks, the engine has 4")
    refused(run(*good, "--out", out.with_suffix(".pt")), "must end in")
    config.write_text(json.dumps(CONFIG | {"first_k_dense_replace": 0}))
    refused(run(*good, "--out", out), "3 MoE layers; the model has 4")
    config.write_text(json.dumps(CONFIG | {"num_experts": 16}))
    refused(run(*good, "--out", out), "8 experts a layer; the model has 16")
    config.write_text(json.dumps(CONFIG))
    lengths_only = tmp_path / "lengths.plan.json"
    write_json(lengths_only, make_plan(medium_case(routes=False)))
    bare = ("export", form, lengths_only, "--model", config)
    refused(run(*bare, "--out", out), "no placement")
    assert not list(tmp_path.rglob("map.*"))
    (tmp_path / "flat").write_text("")
    refused(run(*good, "--out", tmp_path / "flat" / out.name), "flat")


def test_what_is_no_plan_is_refused(
    run: Run, window_file: Path, tmp_path: Path
) -> None:
    answer = run("export", "vllm", window_file, "--out", tmp_path / "m.json")
    refused(answer, "holds a Window; a plan or a placement")


def test_sglang_needs_the_model(run: Run, plan_file: Path, tmp_path: Path) -> None:
    answer = run("export", "sglang", plan_file, "--out", tmp_path / "m.json")
    assert answer.code == 2
    assert "--model" in answer.err


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_micro_batches_are_written(
    suffix: str, run: Run, plan_file: Path, window_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "orders" / f"order.{suffix}"
    good = ("export", "micro-batches", plan_file, "--window", window_file)
    answer = run(*good, "--out", out, "--json")
    plan = read(plan_file, Plan)
    row = {"file": out.name, "dp": 4, "rows": plan.layout.num_rows}
    assert answer.json == [{**row, "samples": 40, "dropped": 0}]
    assert list(out.parent.iterdir()) == [out]
    if suffix == "json":
        beside = ("compare", window_file, plan_file, "--schedule", out, "--json")
        entries = {entry["method"]: entry for entry in run(*beside).json}
        assert entries["your schedule"]["rows"] == plan.layout.num_rows
        assert entries["your schedule"]["breaks"] is None


def test_bad_micro_batches_are_refused(
    run: Run, plan_file: Path, window_file: Path, tmp_path: Path
) -> None:
    good = ("export", "micro-batches", plan_file, "--out", tmp_path / "o.json")
    other = save(tmp_path / "other.npz", shorter(3))
    refused(run(*good, "--window", other), "the plan is for window")
    refused(run(*good, "--window", plan_file), "holds a Plan; a Window is needed")
    bad = ("export", "micro-batches", plan_file, "--out", tmp_path / "o.txt")
    refused(run(*bad, "--window", window_file), "must end in .json or .npz")
    assert not list(tmp_path.glob("o.*"))
