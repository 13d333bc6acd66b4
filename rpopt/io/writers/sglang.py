"""SGLang: the file of `--init-expert-location`.

`{"physical_to_logical_map": [...]}`, one row for every hidden layer, dense ones too;
those keep the identity. SGLang passes every key of the object on as an argument, so
there is no place for anything else, and tells a file from inline JSON by its suffix.
Read from SGLang 0.5.23, `srt/eplb/expert_location.py`.
"""

import numpy as np

from rpopt.io.access import AnyPath
from rpopt.io.jsonfile import write_json_text
from rpopt.io.model_config import RoutedModel
from rpopt.io.writers.expert_maps import checked, require_suffix
from rpopt.plans import Placement


def write_map(
    path: AnyPath,
    placement: Placement | None,
    model: RoutedModel,
    *,
    ep_size: int | None = None,
) -> None:
    """Write a placement for SGLang, started without redundant experts.

    Parameters
    ----------
    path
        File whose name ends in `.json`.
    placement
        That of a plan.
    model
        Which of its layers are MoE layers.
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
    every_layer = np.tile(np.arange(model.num_experts), (model.num_layers, 1))
    every_layer[list(model.moe_layers)] = fitting.expert_of_slot_LE
    write_json_text(path, {"physical_to_logical_map": every_layer.tolist()})
