"""The partition bound on the peak of a layer: no partition of the experts is below it.

If no rank is to reach `limit`, then all of them together leave P (limit - 1) - total of
slack, and none may leave more than that. So a rank holds one of the sets of M experts
with a load between limit - 1 less the slack and limit - 1. Close to the mean there are
few of those, and a search finds a partition of the experts into them, or that there
is none: then `limit` is a bound. What is found is a better placement.

Where a few experts are hot, the same search bounds larger layers. The q hottest experts
sit on q ranks, with q (M - 1) companions, or two of them share a rank. So the peak is
at least the optimum of a layer of q ranks with those experts and the coldest
companions, or what two of them share, whichever is smaller.

The evidence is the number of ranks, q or all, and of steps of the search; the recheck
repeats it.

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
_FEW_RANKS = (2, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search below a limit found.

    Parameters
    ----------
    limit
        No rank is to reach it.
    rank_E
        A placement whose peak is below the limit; None when there is none.
    steps
        Steps of the search.
    """

    limit: int
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
    for ranks in _parts(instance):
        part, most = hottest(instance, layer, ranks)
        highest = min(upper, most)
        for found in _findings(part, lower, highest, deadline_s):
            if found.rank_E is None:
                lower = found.limit
                evidence = {"layer": layer, "ranks": ranks, "steps": found.steps}
                yield Bound(
                    name=NAME, kind="arithmetic", value=lower, evidence=evidence
                )
            elif ranks == instance.num_ep_ranks:
                upper = _peak(part, found.rank_E)
                yield found.rank_E


def hottest(
    instance: PlacementInstance, layer: int, ranks: int
) -> tuple[PlacementInstance, float]:
    """Return the hottest experts of a layer, one per rank, and their companions.

    Returns
    -------
    part
        The `ranks` hottest experts and the coldest that can fill as many ranks; the
        whole layer in its order for all ranks.
    most
        A bound on the peak of `part` bounds that of the layer up to here: the least
        load of a rank that two of the hottest share; no limit for all ranks.
    """
    load_E, companions = instance.load_LE[layer], instance.experts_per_rank - 1
    if ranks == instance.num_ep_ranks:
        return PlacementInstance(load_LE=load_E[None], num_ep_ranks=ranks), math.inf
    load_E = np.sort(load_E)[::-1]
    hot_E, cold_E = load_E[:ranks], load_E[load_E.size - ranks * companions :]
    part_1E = np.concatenate([hot_E, cold_E])[None]
    shared = hot_E[-2:].sum() + load_E[load_E.size - companions + 1 :].sum()
    return PlacementInstance(load_LE=part_1E, num_ep_ranks=ranks), int(shared)


def _parts(instance: PlacementInstance) -> list[int]:
    """Return the numbers of ranks to search, the fewest first."""
    ranks = instance.num_ep_ranks
    few = _FEW_RANKS if instance.experts_per_rank > 1 else ()
    return [*(q for q in few if q < ranks), ranks]


def _findings(
    part: PlacementInstance, lower: int, upper: float, deadline_s: float
) -> Iterator[Finding]:
    """Search below limits that rise, until bound and placement meet or time is up."""
    step = 0
    while lower < upper:
        step = step or max(1, (int(upper) - lower) // _FIRST_PART)
        limit = min(int(upper), lower + step)
        try:
            found = search_below(part, 0, limit, deadline_s=deadline_s)
        except OutOfTimeError:
            return
        if found is None:
            return
        if found.rank_E is None:
            lower, step = limit, 2 * step
        else:
            upper, step = _peak(part, found.rank_E), 0
        yield found


def _peak(part: PlacementInstance, rank_E: Int64Array) -> int:
    load_P = np.zeros(part.num_ep_ranks, dtype=np.int64)
    np.add.at(load_P, rank_E, part.load_LE[0])
    return int(load_P.max())


def recheck(instance: PlacementInstance, bound: Bound) -> int:
    """Return the peak that a partition bound proves: search again.

    Raises
    ------
    CertificateError
        When the evidence does not fit, the search takes another number of steps or
        too many, or it finds a placement below the bound.
    """
    if set(bound.evidence) != {"layer", "ranks", "steps"}:
        raise CertificateError(
            f"a partition bound has the fields {sorted(bound.evidence)}; it needs"
            " layer, ranks and steps"
        )
    layer, ranks = bound.evidence["layer"], bound.evidence["ranks"]
    steps = positive_int(bound.evidence["steps"], name="steps", minimum=0)
    if type(layer) is not int or not 0 <= layer < instance.load_LE.shape[0]:
        raise CertificateError(
            f"layer {layer!r}; the instance has {instance.load_LE.shape[0]}"
        )
    if type(ranks) is not int or ranks not in _parts(instance):
        raise CertificateError(
            f"{ranks!r} ranks; a partition bound is about one of {_parts(instance)}"
        )
    part, most = hottest(instance, layer, ranks)
    if bound.value > most:
        raise CertificateError(
            f"the hottest {ranks} experts prove at most {most}, not {bound.value}: two"
            " of them may share a rank"
        )
    found = search_below(part, 0, bound.value)
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
        return Finding(limit=limit, rank_E=None, steps=0)
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
        return Finding(limit=limit, rank_E=None, steps=int(steps))
    rank_E = np.empty(load_E.size, dtype=np.int64)
    for rank, mask in enumerate(mask_Z[place_D].tolist()):
        inside_E = (mask >> np.arange(load_E.size, dtype=object)) & 1 == 1
        rank_E[order_E[inside_E.astype(bool)]] = rank
    return Finding(limit=limit, rank_E=rank_E, steps=int(steps))
