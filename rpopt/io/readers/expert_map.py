"""Expert maps of vllm-ascend: where experts are now.

`expert_map_path` and `expert_map_record_path` of its `eplb_config` name a JSON file:
`{"moe_layer_count", "layer_list": [{"layer_id", "device_count", "device_list":
[{"device_id", "device_expert": [logical ids, slot by slot]}]}]}`, MoE layers only.
Loads are not recorded. Read from vllm-project/vllm-ascend 182b75ea.
"""

from pathlib import Path
from typing import Any

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.io.jsonfile import parse_json
from rpopt.io.readers.fields import field
from rpopt.plans import Placement


def is_expert_map(path: AnyPath) -> bool:
    """Return whether a file is such a map, damaged or not."""
    with reading(path):
        return (
            Path(path).suffix == ".json" and b'"layer_list"' in Path(path).read_bytes()
        )


def read_expert_map(path: AnyPath) -> Placement:
    """Return the placement of a map without redundant experts.

    Raises
    ------
    FileFormatError
        When the file is damaged, or a layer is no permutation of the experts.
    """
    with reading(path):
        whole = parse_json(Path(path).read_bytes())
        layers = field(whole, "layer_list", 0, what="map")
        if len(layers) != field(whole, "moe_layer_count", 0, what="map"):
            raise FileFormatError(
                f"moe_layer_count is {whole['moe_layer_count']}, layer_list has"
                f" {len(layers)} entries"
            )
        expert_of_slot = [_slots(layer, index) for index, layer in enumerate(layers)]
        ranks = {len(devices) for devices in expert_of_slot}
        experts = {len(slots) for devices in expert_of_slot for slots in devices}
        if len(ranks) != 1 or len(experts) != 1:
            raise FileFormatError(
                f"device_list has {sorted(ranks)} devices and device_expert"
                f" {sorted(experts)} experts; every layer needs equally many"
            )
        (num_ranks,), num_layers = ranks, len(layers)
        expert_LE = np.array(expert_of_slot).reshape(num_layers, -1)
        _check_permutations(expert_LE)
        return Placement(
            slot_LE=np.argsort(expert_LE, axis=1, kind="stable"), num_ep_ranks=num_ranks
        )


def _slots(layer: Any, index: int) -> list[list[int]]:
    """Return the experts in the slots of every device."""
    devices = field(layer, "device_list", index, what="layer")
    found = [field(d, "device_expert", index, what="layer") for d in devices]
    if not all(isinstance(e, list) and {type(i) for i in e} == {int} for e in found):
        raise FileFormatError(
            f"layer {index}, field 'device_expert' is not a list of expert ids"
        )
    return found


def _check_permutations(expert_LE: Any) -> None:
    num_experts = expert_LE.shape[1]
    wrong = (np.sort(expert_LE, axis=1) != np.arange(num_experts)).any(axis=1)
    if wrong.any():
        raise FileFormatError(
            f"layer {wrong.argmax()}, field 'device_expert': its {num_experts} slots do"
            f" not hold the experts 0 to {num_experts - 1} once each; redundant experts"
            " have no placement in training"
        )
