"""DeepSeek EPLB: the three arrays that its `rebalance_experts` returns, as `.npz`.

`phy2log` [L, E] is the logical expert in each slot, `log2phy` [L, E, 1] the slots of
each expert and `logcnt` [L, E] their number, which is 1; all int64. The text `header`
names the schema. Layers are MoE layers. Read from deepseek-ai/EPLB 57919718, `eplb.py`.
"""

import numpy as np

from rpopt.io.access import AnyPath, atomic_writer
from rpopt.io.model_config import RoutedModel
from rpopt.io.npz import write_npz_members
from rpopt.io.writers.expert_maps import checked, require_suffix
from rpopt.plans import Placement
from rpopt.records import canonical_json

SCHEMA = "rpopt.deepseek-eplb/1"


def write_maps(
    path: AnyPath,
    placement: Placement | None,
    model: RoutedModel | None = None,
    *,
    ep_size: int | None = None,
) -> None:
    """Write a placement as the result of EPLB without redundant experts.

    Parameters
    ----------
    path
        File whose name ends in `.npz`.
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
    require_suffix(path, ".npz")
    fitting = checked(placement, model=model, ep_size=ep_size)
    header = {"schema": SCHEMA, "num_ep_ranks": fitting.num_ep_ranks}
    maps = {
        "phy2log": fitting.expert_of_slot_LE,
        "log2phy": fitting.slot_LE[:, :, None],
        "logcnt": np.ones_like(fitting.slot_LE),
    }
    with atomic_writer(path) as file:
        write_npz_members(file, canonical_json(header), maps)
