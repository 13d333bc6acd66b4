"""The two forms of routes on disk, and a real file of one of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpopt.errors import FileFormatError
from rpopt.io.route_files import read_routes
from rpopt.io.routes import window_from_routes
from rpopt.window import Window
from tests.io.test_routes import NUM_EXPERTS, TOP_K, draw_routes

LENGTHS = [10, 4, 7]
PARTS = [draw_routes(1, 9).astype(np.uint8), None, draw_routes(2, 7).astype(np.uint8)]


def build(path: Path) -> Window:
    return window_from_routes(
        read_routes(path), top_k=TOP_K, num_experts=NUM_EXPERTS, origin="test"
    )


def save_npz(path: Path, **changes: Any) -> Path:
    arrays = {
        "routes": np.concatenate([PARTS[0], PARTS[2]]),
        "offsets": np.array([0, 9, 9, 16], dtype=np.int32),
        "length_N": np.array(LENGTHS),
        "prompt_group_N": np.array([5, -1, 5]),
        "bundle_N": np.array([-1, 0, 0]),
    } | changes
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def save_folder(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    entries: list[dict[str, Any]] = [
        {"file": "a.npy", "length": 10, "prompt_group": 5},
        {"file": None, "length": 4, "bundle": 0},
        {"file": "c.npy", "length": 7, "prompt_group": 5, "bundle": 0},
    ]
    entries[2].update(changes)
    np.save(folder / "a.npy", PARTS[0])
    np.save(folder / "c.npy", PARTS[2])
    (folder / "samples.json").write_text(json.dumps(entries))
    return folder


def test_both_forms_give_the_same_window(tmp_path: Path) -> None:
    window = build(save_npz(tmp_path / "routes.npz"))
    assert build(save_folder(tmp_path / "routes")) == window
    assert window.length_N.tolist() == LENGTHS
    assert window.routed_tokens_N is not None
    assert window.routed_tokens_N.tolist() == [9, 0, 6]
    assert window.prompt_group_N is not None
    assert window.prompt_group_N.tolist() == [5, -1, 5]


def test_a_late_start_is_read_in_both_forms(tmp_path: Path) -> None:
    moved = save_npz(
        tmp_path / "a.npz",
        first_token_N=np.array([0, 0, 3]),
        length_N=np.array([10, 4, 10]),
    )
    assert build(moved) == build(save_folder(tmp_path / "a", first_token=3, length=10))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speed_N": np.arange(3)}, "'speed_N'.* are unknown"),
        ({"routes": None}, "no array 'routes'"),
        ({"routes": np.zeros((16, 3))}, "save it as integers"),
        ({"routes": np.zeros((16, 3), dtype=int)}, "not three axes"),
        ({"offsets": np.array([0, 9, 8, 16])}, "must rise from 0 to the 16 rows"),
        ({"offsets": np.array([0, 9, 9, 15])}, "must rise from 0 to the 16 rows"),
        ({"offsets": np.array([[0, 16]])}, "one axis"),
        ({"length_N": np.arange(4)}, "length_N has 4 entries for 3 samples"),
        ({"length_N": None}, "needs length_N"),
    ],
)
def test_broken_npz_files_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = save_npz(tmp_path / "routes.npz", **changes)
    with pytest.raises(FileFormatError, match=f"^{path}: .*{words}"):
        build(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speed": 1}, "entry 2 must be an object with keys among"),
        ({"length": "7"}, "entry 2 needs a whole number as 'length'"),
        ({"bundle": None}, "entry 2 needs a whole number as 'bundle'"),
        ({"file": "../c.npy"}, "not a file in the folder"),
        ({"file": "d.npy"}, "d.npy: no such file"),
    ],
)
def test_broken_folders_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(FileFormatError, match=words):
        build(save_folder(tmp_path / "routes", **changes))


def test_pickled_and_damaged_samples_are_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "routes")
    np.save(folder / "c.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"c\.npy: .*another format"):
        build(folder)
    (folder / "c.npy").write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"c\.npy: "):
        build(folder)
    (folder / "samples.json").write_text("{}")
    with pytest.raises(FileFormatError, match=r"samples\.json: must be a list"):
        build(folder)


def test_real_token_routes_match_the_real_counts(data_dir: Path) -> None:
    folder = data_dir / "moe-routing-gptoss20b"
    samples = read_routes(folder / "token_topk_subset.npz")
    window = window_from_routes(samples, top_k=4, num_experts=32)
    with np.load(folder / "sample_expert_counts.npz") as arrays:
        counts = arrays["counts"]
    with np.load(folder / "token_topk_subset.npz") as arrays:
        rows = arrays["sample"]
    assert window.demand_NLE is not None
    assert np.array_equal(window.demand_NLE, counts[rows])
