"""`rpopt window`: what it makes, and what it refuses without leaving a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpopt.io import read
from rpopt.io.synthetic import synthetic_window
from rpopt.window import Window
from tests.cli.command import Run, refused

GENERATE = ("window", "generate", "--seed=3", "--samples=9", "--layers=2")


def test_generate(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "new" / "w.npz"
    answer = run(*GENERATE, "--experts=8", "--out", path, "--json")
    assert answer.code == 0
    window = read(path, Window)
    assert window == synthetic_window(
        seed=3,
        num_samples=9,
        num_layers=2,
        num_experts=8,
        top_k=4,
        max_length_tokens=16384,
    )
    (facts,) = answer.json
    assert facts["samples"] == 9
    assert facts["tokens"] == facts["routed_tokens"] == window.total_tokens
    assert facts["digest"] == window.digest[:12]


def test_the_same_seed_gives_the_same_file(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(*GENERATE, "--out", tmp_path / name).code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_lengths_only(run: Run, tmp_path: Path) -> None:
    answer = run(*GENERATE, "--no-routes", "--out", tmp_path / "w.npz")
    assert answer.code == 0
    assert "MoE_layers" in answer.out
    assert read(tmp_path / "w.npz", Window).num_layers == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--samples=0",), ("num_samples = 0",)),
        (("--samples=-4",), ("num_samples = -4",)),
        (("--experts=2", "--top-k=4"), ("top_k = 4 exceeds the 2 experts",)),
        (("--max-length=0",), ("max_length_tokens = 0",)),
        (("--max-length=2147483648",), ("2147483647",)),
        (("--group-size=0",), ("group_size = 0",)),
    ],
)
def test_impossible_windows_are_refused(
    run: Run, tmp_path: Path, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(run(*GENERATE, *flags, "--out", tmp_path / "w.npz"), *words)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_found_before_the_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(**_: Any) -> Window:
        raise AssertionError("the window was made")

    monkeypatch.setattr("rpopt.cli.window.synthetic_window", never)
    file = tmp_path / "file"
    file.write_text("")
    for out in (file / "w.npz", file / "deep" / "w.npz"):
        refused(run(*GENERATE, "--out", out), str(out.parent), "choose another")
    assert file.read_text() == ""


def save_routes(path: Path, routes: Any, rows: list[int]) -> Path:
    """Routes of samples with one token more than they have rows."""
    lengths = np.array(rows, dtype=np.int64) + 1
    np.savez(path, routes=routes, offsets=np.cumsum([0, *rows]), length_N=lengths)
    return path


ROUTES = np.array([[[0, 1]], [[2, 1]], [[3, 0]], [[1, 2]]], dtype=np.int16)


def from_routes(run: Run, folder: Path, routes: Any, *flags: str) -> Any:
    path = save_routes(folder / "r.npz", routes, [3, 1])
    argv = ("--top-k=2", "--experts=4", *flags)
    return run("window", "from-routes", path, *argv, "--out", folder / "w.npz")


def test_from_routes(run: Run, tmp_path: Path) -> None:
    assert from_routes(run, tmp_path, ROUTES).code == 0
    window = read(tmp_path / "w.npz", Window)
    assert window.demand_NLE is not None
    assert window.demand_NLE.tolist() == [[[2, 2, 1, 1]], [[0, 1, 1, 0]]]


def changed(at: Any, value: int) -> np.ndarray:
    routes = ROUTES.copy()
    routes[at] = value
    return routes


@pytest.mark.parametrize(
    ("routes", "flags", "words"),
    [
        (changed((1, 0, 0), 1), (), ("sample 0", "row 1", "repeats an expert: [1, 1]")),
        (changed((3, 0, 1), 4), (), ("sample 1", "row 0", "outside [0, 4)")),
        (changed((0, 0, 1), -7), (), ("sample 0", "outside [0, 4)")),
        (ROUTES[:3], (), ("offsets",)),
        (ROUTES.astype(float), (), ("integers",)),
        (ROUTES, ("--moe-layers=2-1",), ("increasing layer numbers",)),
    ],
)
def test_broken_routes_are_refused(
    run: Run,
    tmp_path: Path,
    routes: Any,
    flags: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    refused(from_routes(run, tmp_path, routes, *flags), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["r.npz"]


def test_no_samples_are_refused(run: Run, tmp_path: Path) -> None:
    path = save_routes(tmp_path / "r.npz", ROUTES[:0], [])
    argv = ("--top-k=2", "--experts=4", "--out", tmp_path / "w.npz")
    refused(run("window", "from-routes", path, *argv), "sample")
    assert not (tmp_path / "w.npz").exists()


def test_layer_lists_are_numbers(run: Run, tmp_path: Path) -> None:
    answer = from_routes(run, tmp_path, ROUTES, "--moe-layers=a-b")
    assert answer.code == 2
    assert "--moe-layers" in answer.err
