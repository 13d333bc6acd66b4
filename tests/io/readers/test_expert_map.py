"""Maps of vllm-ascend become placements; those with redundant experts do not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpopt.errors import FileFormatError
from rpopt.io.readers.expert_map import is_expert_map, read_expert_map

EXPERTS = [[[2, 0], [3, 1]], [[0, 1], [2, 3]], [[3, 2], [1, 0]]]
"""Logical experts by layer, device and slot."""


def expert_map(experts: Any) -> dict[str, Any]:
    layers = [
        {
            "layer_id": i,
            "device_count": len(devices),
            "device_list": [
                {"device_id": d, "device_expert": ids} for d, ids in enumerate(devices)
            ],
        }
        for i, devices in enumerate(experts)
    ]
    return {"moe_layer_count": len(layers), "layer_list": layers}


def save(path: Path, experts: Any) -> Path:
    path.write_text(json.dumps(expert_map(experts), indent=4))
    return path


def test_slots_are_those_of_the_map(tmp_path: Path) -> None:
    path = save(tmp_path / "m.json", EXPERTS)
    assert is_expert_map(path)
    placement = read_expert_map(path)
    assert placement.num_ep_ranks == 2
    assert placement.expert_of_slot_LE.tolist() == np.reshape(EXPERTS, (3, 4)).tolist()


BAD: dict[str, tuple[Any, str]] = {
    "redundant": ([[[0, 1], [1, 2]]], "layer 0.*once each"),
    "out of range": ([[[0, 1], [2, 4]]], "layer 0.*once each"),
    "negative": ([[[0, -1], [2, 3]]], "layer 0.*once each"),
    "uneven": ([[[0, 1], [2]]], "equally many"),
    "other devices": ([*EXPERTS, [[0, 1, 2, 3]]], "equally many"),
    "no ids": ([[["a", 1], [2, 3]]], "layer 0, field 'device_expert'"),
    "empty": ([], "equally many"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_maps_name_the_layer(case: str, tmp_path: Path) -> None:
    experts, words = BAD[case]
    with pytest.raises(FileFormatError, match=rf"m\.json.*{words}"):
        read_expert_map(save(tmp_path / "m.json", experts))


@pytest.mark.parametrize("change", ["count", "cut", "devices", "list"])
def test_damaged_maps_are_named(change: str, tmp_path: Path) -> None:
    value = expert_map(EXPERTS)
    if change == "count":
        value["moe_layer_count"] = 4
    elif change == "devices":
        del value["layer_list"][1]["device_list"]
    text = json.dumps([value] if change == "list" else value)
    path = tmp_path / "m.json"
    path.write_text(text[:-9] if change == "cut" else text)
    with pytest.raises(FileFormatError, match=r"m\.json"):
        read_expert_map(path)
