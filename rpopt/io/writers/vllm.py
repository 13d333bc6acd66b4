"""vLLM: the file of `eplb_config.initial_expert_map_path`.

A list of the logical expert in each physical slot for every MoE layer; dense layers do
not appear. No release reads it: the option is proposed in pull request 49572 of
vllm-project/vllm, open in September 2026, from whose description the format was taken.
"""

from rpopt.io.access import AnyPath
from rpopt.io.jsonfile import write_json_text
from rpopt.io.model_config import RoutedModel
from rpopt.io.writers.expert_maps import checked, require_suffix
from rpopt.plans import Placement


def write_map(
    path: AnyPath,
    placement: Placement | None,
    model: RoutedModel | None = None,
    *,
    ep_size: int | None = None,
) -> None:
    """Write a placement for vLLM, started without redundant experts.

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
    write_json_text(path, fitting.expert_of_slot_LE.tolist())
