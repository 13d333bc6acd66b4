"""The partition bound on the peak of a layer: no partition of the experts is below it.

If no rank is to reach `limit`, then all of them together leave P (limit - 1) - total of
slack, and none may leave more than that. So a rank holds one of the sets of M experts
with a load between limit - 1 less the slack and limit - 1. Close to the mean there are
few of those, and a search finds a partition of the experts into them, or that there
is none: then `limit` is a bound. What is found is a better placement.

The evidence is the number of steps of that search; the recheck repeats it.

Axis letters: L MoE layers, E experts (in kernels hottest first), P EP ranks, M experts
per rank, Z sets of experts, D depths.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.placement.instance import PlacementInstance
from rpopt.records import Int64Array, positive_int
from rpopt.stop import OutOfTimeError, require_time

NAME = "partition"
MOST_EXPERTS = 64  # bits of a set
MOST_SETS = 2**20
MOST_STEPS = 10**9
"""Some seconds; a bound that takes more is not claimed, nor repeated by `recheck`."""
_STEPS_PER_LOOK = 3 * 10**7  # between two looks at the clock
_FIRST_PART = 8  # of the gap: where the first limit stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search below a limit found.

    Parameters
    ----------
    rank_E
        A placement whose peak is below the limit; None when there is none.
    steps
        Steps of the search.
    """

    rank_E: Int64Array | None
    steps: int


def narrow(
    instance: PlacementInstance,
    layer: int,
    *,
    lower: int,
    upper: int,
    deadline_s: float = math.inf,
) -> Iterator[Bound | Int64Array]:
    """Yield bounds above `lower`, and placements below `upper`, until they meet.

    Limits rise from the lower bound, by an eighth of the gap and then twice as far each
    time, because higher ones take longer.

    Parameters
    ----------
    instance, layer
        Which loads.
    lower, upper
        A bound on the peak, and the peak of a placement.
    deadline_s
        On the clock of `time.monotonic`.

    Yields
    ------
    Bound or Int64Array
        A bound that is proved, or the rank of each expert, [E], of a placement.
    """
    load_E, part = instance.load_LE[layer], 0
    while lower < upper:
        part = part or max(1, (upper - lower) // _FIRST_PART)
        limit = min(upper, lower + part)
        try:
            found = search_below(instance, layer, limit, deadline_s=deadline_s)
        except OutOfTimeError:
            return
        if found is None:
            return
        if found.rank_E is None:
            lower, part = limit, 2 * part
            evidence = {"layer": layer, "steps": found.steps}
            yield Bound(name=NAME, kind="arithmetic", value=lower, evidence=evidence)
        else:
            load_P = np.zeros(instance.num_ep_ranks, dtype=np.int64)
            np.add.at(load_P, found.rank_E, load_E)
            upper, part = int(load_P.max()), 0
            yield found.rank_E


def recheck(instance: PlacementInstance, bound: Bound) -> int:
    """Return the peak that a partition bound proves: search again.

    Raises
    ------
    CertificateError
        When the evidence does not fit, the search takes another number of steps or
        too many, or it finds a placement below the bound.
    """
    if set(bound.evidence) != {"layer", "steps"}:
        raise CertificateError(
            f"a partition bound has the fields {sorted(bound.evidence)}; it needs layer"
            " and steps"
        )
    layer = bound.evidence["layer"]
    steps = positive_int(bound.evidence["steps"], name="steps", minimum=0)
    if type(layer) is not int or not 0 <= layer < instance.load_LE.shape[0]:
        raise CertificateError(
            f"layer {layer!r}; the instance has {instance.load_LE.shape[0]}"
        )
    found = search_below(instance, layer, bound.value)
    if found is None:
        raise CertificateError(
            f"the search for a peak below {bound.value} takes too long to be repeated"
        )
    if found.rank_E is not None:
        raise CertificateError(f"layer {layer} has a placement below {bound.value}")
    if found.steps != steps:
        raise CertificateError(
            f"the search below {bound.value} takes {found.steps} steps; the evidence"
            f" says {steps}"
        )
    return bound.value


def search_below(
    instance: PlacementInstance,
    layer: int,
    limit: int,
    *,
    deadline_s: float = math.inf,
) -> Finding | None:
    """Search for a placement of a layer with a peak below a limit.

    None where there are too many experts or sets, or it takes too many steps.

    Raises
    ------
    OutOfTimeError
        When the deadline passes.
    """
    load_E = instance.load_LE[layer]
    if load_E.size > MOST_EXPERTS:
        return None
    ranks, size = instance.num_ep_ranks, instance.experts_per_rank
    slack = ranks * (limit - 1) - int(load_E.sum())
    if slack < 0:
        return Finding(rank_E=None, steps=0)
    require_time(deadline_s)
    from rpopt.placement import partition_kernels as kernels  # numba loads slowly

    order_E = np.argsort(-load_E, kind="stable")
    mask_Z = np.empty(MOST_SETS, dtype=np.uint64)
    load_Z = np.empty(MOST_SETS, dtype=np.int64)
    low, high = max(0, limit - 1 - slack), limit - 1
    count, steps = kernels.list_sets(
        load_E[order_E], size, low, high, MOST_STEPS // 10, mask_Z, load_Z
    )
    if count < 0:
        return None
    mask_Z, slack_Z = mask_Z[:count], limit - 1 - load_Z[:count]
    # The hottest expert of a set is its lowest bit.
    hottest_Z = np.log2((mask_Z & (~mask_Z + np.uint64(1))).astype(np.float64))
    sorting = np.lexsort((mask_Z, slack_Z, hottest_Z))
    mask_Z, slack_Z = mask_Z[sorting], slack_Z[sorting]
    start_E1 = np.searchsorted(hottest_Z[sorting], np.arange(load_E.size + 1))
    place_D, used_D = np.zeros(ranks, np.int64), np.zeros(ranks, np.uint64)
    left_D, depth_1 = np.full(ranks, slack), np.zeros(1, np.int64)
    ended = kernels.STOPPED
    while ended == kernels.STOPPED:
        require_time(deadline_s)
        if steps > MOST_STEPS:
            return None
        ended, more = kernels.partition(
            mask_Z, slack_Z, start_E1, _STEPS_PER_LOOK, place_D, used_D, left_D, depth_1
        )
        steps += more
    if ended == kernels.EXHAUSTED:
        return Finding(rank_E=None, steps=int(steps))
    rank_E = np.empty(load_E.size, dtype=np.int64)
    for rank, mask in enumerate(mask_Z[place_D].tolist()):
        inside_E = (mask >> np.arange(load_E.size, dtype=object)) & 1 == 1
        rank_E[order_E[inside_E.astype(bool)]] = rank
    return Finding(rank_E=rank_E, steps=int(steps))
