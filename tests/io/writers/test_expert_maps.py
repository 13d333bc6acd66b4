"""Expert maps come back as the placement that was written; bad input is named."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.errors import FileFormatError, InstanceError, MismatchError
from rpopt.io.model_config import RoutedModel
from rpopt.io.writers import deepseek, sglang, vllm, vllm_ascend
from rpopt.plans import Placement
from tests.io.writers import cases
from tests.io.writers.cases import EXPERT_LE, MODEL, PLACEMENT, placed_models

FORMATS: dict[str, tuple[Callable[..., None], Callable[..., Placement]]] = {
    "sglang.json": (sglang.write_map, cases.read_sglang),
    "vllm.json": (vllm.write_map, cases.read_vllm),
    "vllm-ascend.json": (vllm_ascend.write_map, cases.read_vllm_ascend),
    "deepseek.npz": (deepseek.write_maps, cases.read_deepseek),
}
formats = pytest.mark.parametrize("name", FORMATS)


@formats
@settings(deadline=None, max_examples=40)
@given(placed_models())
def test_a_map_comes_back(name: str, case: tuple[RoutedModel, Placement]) -> None:
    (model, placement), (write, read) = case, FORMATS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path, placement, model, ep_size=placement.num_ep_ranks)
        found = read(path, model, placement.num_ep_ranks)
        assert found.digest == placement.digest
        assert [file.name for file in Path(folder).iterdir()] == [name]


def test_texts_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    identity = [0, 1, 2, 3, 4, 5]
    sglang.write_map(path, PLACEMENT, MODEL)
    rows = [identity, EXPERT_LE[0], identity, EXPERT_LE[1]]
    assert json.loads(path.read_text()) == {"physical_to_logical_map": rows}
    vllm.write_map(path, PLACEMENT)
    assert json.loads(path.read_text()) == EXPERT_LE
    vllm_ascend.write_map(path, PLACEMENT)
    layers = json.loads(path.read_text())["layer_list"]
    assert layers[1] == {
        "layer_id": 1,
        "device_count": 3,
        "device_list": [
            {"device_id": 0, "device_expert": [0, 3]},
            {"device_id": 1, "device_expert": [1, 4]},
            {"device_id": 2, "device_expert": [2, 5]},
        ],
    }


def test_the_deepseek_file_names_its_schema(tmp_path: Path) -> None:
    deepseek.write_maps(tmp_path / "a.npz", PLACEMENT)
    deepseek.write_maps(tmp_path / "b.npz", PLACEMENT)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz") as maps:
        assert json.loads(str(maps["header"])) == {
            "num_ep_ranks": 3,
            "schema": "rpopt.deepseek-eplb/1",
        }
        assert all(maps[n].dtype == np.int64 for n in ("phy2log", "log2phy", "logcnt"))


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no placement": ({"placement": None}, InstanceError, "lengths only"),
    "layers": (
        {"model": replace(MODEL, moe_layers=(1, 2, 3))},
        MismatchError,
        r"2 MoE layers; the model has 3 \(4 layers, 1 of them dense\)",
    ),
    "dense layers counted as MoE layers": (
        {"model": replace(MODEL, num_layers=2, moe_layers=(0,))},
        MismatchError,
        r"has 1 \(2 layers, 1 of them dense\)",
    ),
    "experts": (
        {"model": replace(MODEL, num_experts=8)},
        MismatchError,
        "6 experts a layer; the model has 8",
    ),
    "EP ranks": ({"ep_size": 2}, MismatchError, "3 EP ranks, the engine has 2"),
}


@formats
@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_named_and_leaves_what_was_there(
    name: str, fault: str, tmp_path: Path
) -> None:
    changes, kind, words = BAD[fault]
    path = tmp_path / name
    path.write_text("before")
    arguments = {"placement": PLACEMENT, "model": MODEL, **changes}
    with pytest.raises(kind, match=words):
        FORMATS[name][0](path, **arguments)
    assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


@formats
@pytest.mark.parametrize("suffix", ["", ".pt", ".txt"])
def test_an_unknown_suffix_is_refused(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"map{suffix}"
    with pytest.raises(InstanceError, match=r"map.*must end in \.(json|npz)"):
        FORMATS[name][0](path, PLACEMENT, MODEL)
    assert not path.exists()


@formats
def test_an_unwritable_path_is_named(name: str, tmp_path: Path) -> None:
    write, _ = FORMATS[name]
    with pytest.raises(FileFormatError, match=r"none.*cannot be written"):
        write(tmp_path / "none" / name, PLACEMENT, MODEL)
    folder = tmp_path / name
    folder.mkdir()
    with pytest.raises(FileFormatError, match="cannot be written"):
        write(folder, PLACEMENT, MODEL)
    assert list(tmp_path.iterdir()) == [folder]
