"""vllm-ascend: the file of `eplb_config.expert_map_path`.

For every MoE layer, counted from 0 without dense ones, the logical experts on each
device in the order of its slots. Read from vllm-project/vllm-ascend 182b75ea,
`vllm_ascend/eplb/core/eplb_utils.py`; its guide announces the removal of static maps.
"""

from typing import Any

from rpopt.io.access import AnyPath
from rpopt.io.jsonfile import write_json_text
from rpopt.io.model_config import RoutedModel
from rpopt.io.writers.expert_maps import checked, require_suffix
from rpopt.plans import Placement
from rpopt.records import Int64Array


def write_map(
    path: AnyPath,
    placement: Placement | None,
    model: RoutedModel | None = None,
    *,
    ep_size: int | None = None,
) -> None:
    """Write a placement for vllm-ascend; each EP rank is one device.

    Parameters
    ----------
    path
        File whose name ends in `.json`.
    placement
        That of a plan.
    model
        The model to check the placement against, if known.
    ep_size
        EP ranks of the engine, if known.

    Raises
    ------
    InstanceError
        When there is no placement, or the name ends otherwise.
    MismatchError
        When the placement is of another model or number of EP ranks.
    FileFormatError
        When the file cannot be written.
    """
    require_suffix(path, ".json")
    fitting = checked(placement, model=model, ep_size=ep_size)
    layers = [
        _layer(index, expert_E.reshape(fitting.num_ep_ranks, -1))
        for index, expert_E in enumerate(fitting.expert_of_slot_LE)
    ]
    write_json_text(path, {"moe_layer_count": len(layers), "layer_list": layers})


def _layer(index: int, expert_PS: Int64Array) -> dict[str, Any]:
    """Return one layer; S counts the slots of a device."""
    devices = [
        {"device_id": device, "device_expert": experts}
        for device, experts in enumerate(expert_PS.tolist())
    ]
    return {
        "layer_id": index,
        "device_count": len(devices),
        "device_list": devices,
    }
