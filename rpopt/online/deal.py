"""Samples go from the ranks that made them to the ranks that train them.

Axis letters: D DP ranks.
"""

import pickle
from collections.abc import Sequence
from typing import TypeVar

import torch

from rpopt.errors import InstanceError
from rpopt.online.messages import (
    Deadline,
    Group,
    as_bytes,
    exchange,
    gather_json,
    group_rank,
    message_device,
)
from rpopt.online.rank_plan import RankPlan

_S = TypeVar("_S")


def deal(
    plan: RankPlan, own: Sequence[_S], *, group: Group, timeout_s: float
) -> list[list[_S]]:
    """Return the samples of each cell of this rank; every rank of the group calls it.

    Samples are pickled, as in torch's own object collectives; raw routes travel here,
    once, and only to the rank that needs them.

    Parameters
    ----------
    plan
        The plan; the same on all ranks but for the cells.
    own
        The samples that this rank brought, in the order in which it brought them.

    Raises
    ------
    InstanceError
        On all ranks, when one has another number of samples than it planned with.
    CommunicationError
        When a rank is lost or late.
    """
    deadline, rank = Deadline(timeout_s), group_rank(group)
    first_D = [*plan.first_of_rank_D.tolist(), plan.rank_of_sample_N.size]
    parcels: list[dict[int, _S]] = [{} for _ in first_D[1:]]
    for sample_id, sample in enumerate(own, start=first_D[rank]):
        if sample_id < first_D[rank + 1] and plan.rank_of_sample_N[sample_id] >= 0:
            parcels[plan.rank_of_sample_N[sample_id]][sample_id] = sample
    messages = [pickle.dumps(parcel) for parcel in parcels]
    mine = [len(own), *map(len, messages)]
    sizes = gather_json(mine, group=group, deadline=deadline)
    planned = [last - first for first, last in zip(first_D, first_D[1:], strict=False)]
    if [size[0] for size in sizes] != planned:
        raise InstanceError(
            f"ranks bring {[size[0] for size in sizes]} samples, the plan is for"
            f" {planned}; bring the samples that were planned"
        )
    device = message_device(group)
    others = [other for other in range(len(sizes)) if other != rank]
    receives = [
        (other, torch.empty(sizes[other][1 + rank], dtype=torch.uint8, device=device))
        for other in others
    ]
    sends = [(other, as_bytes(messages[other], device)) for other in others]
    exchange(sends, receives, group=group, deadline=deadline)
    arrived = dict(parcels[rank])
    for _, message in receives:
        arrived |= pickle.loads(message.cpu().numpy().tobytes())
    return [[arrived[i] for i in cell] for cell in plan.cells]
