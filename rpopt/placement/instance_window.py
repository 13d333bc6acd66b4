"""The window-aware placement problem: peaks of the groups that really meet.

The EP ranks of a group wait for its own peak, so what counts is the sum of the peaks
and not the peak of the sum. Each MoE layer is again a problem of its own: spread the
experts over the EP ranks, equally many per rank, so that the weighted sum over groups
of the largest rank load is smallest. One group of weight one is the aggregate problem
of `rpopt.placement.instance`.

Axis letters: N samples, G groups, L MoE layers, E experts, P EP ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rpopt.checks import Violation
from rpopt.errors import InstanceError
from rpopt.placement.instance import MAX_LAYER_LOAD, PlacementInstance, check
from rpopt.plans import Placement
from rpopt.records import (
    Int64Array,
    IntArray,
    Record,
    freeze,
    int_array,
    positive_int,
)

_STREAM = 0x67726F757073  # "groups"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowPlacementInstance(Record):
    """Spread the experts of every layer over the EP ranks, for given groups.

    Parameters
    ----------
    demand_GLE
        Token copies that each group wants from each expert; weighted and summed they
        stay below `MAX_LAYER_LOAD` per layer.
    weight_G
        How much the peaks of a group count, at least 0; 1 for all when left out.
    num_ep_ranks
        P; divides E.
    """

    SCHEMA: ClassVar[str] = "rpopt.placement-window/1"

    demand_GLE: Int64Array
    num_ep_ranks: int
    weight_G: Int64Array | None = None

    def __post_init__(self) -> None:
        """Check sizes and ranges."""
        demand_GLE = int_array(self.demand_GLE, name="demand_GLE", ndim=3, minimum=0)
        if demand_GLE.shape[0] == 0:
            raise InstanceError("there is no group; give at least one")
        weight_G = np.ones(len(demand_GLE), dtype=np.int64)
        if self.weight_G is not None:
            weight_G = int_array(self.weight_G, name="weight_G", ndim=1, minimum=0)
        if weight_G.size != len(demand_GLE):
            raise InstanceError(
                f"{weight_G.size} weights for {len(demand_GLE)} groups; give one each"
            )
        total_GL = demand_GLE.sum(axis=2, dtype=np.float64)
        worst = float((weight_G.astype(np.float64) @ total_GL).max(initial=0.0))
        if max(worst, float(total_GL.max(initial=0.0))) >= MAX_LAYER_LOAD:
            raise InstanceError(
                f"the weighted demand of a layer sums to {worst:.4g}; it must sum to"
                f" less than {MAX_LAYER_LOAD}: divide demand or weights"
            )
        freeze(self, "demand_GLE", demand_GLE)
        freeze(self, "weight_G", int_array(weight_G, name="weight_G", ndim=1))
        freeze(self, "num_ep_ranks", self.aggregate.num_ep_ranks)

    @property
    def num_groups(self) -> int:
        """G."""
        return int(self.demand_GLE.shape[0])

    @property
    def weighted_GLE(self) -> Int64Array:
        """Demand times the weight of its group: a weighted peak is a peak of these."""
        assert self.weight_G is not None
        return self.demand_GLE * self.weight_G[:, None, None]

    @property
    def aggregate(self) -> PlacementInstance:
        """The aggregate problem: weighted demand of all groups together."""
        load_LE = self.weighted_GLE.sum(axis=0)
        return PlacementInstance(load_LE=load_LE, num_ep_ranks=self.num_ep_ranks)


def groups_of_samples(
    demand_NLE: IntArray,
    groups: Sequence[Sequence[int]],
    num_ep_ranks: int,
) -> WindowPlacementInstance:
    """Return the instance of groups that share out all samples.

    Raises
    ------
    InstanceError
        When a group is empty, or a sample is missing, repeated or unknown.
    """
    num_samples = len(demand_NLE)
    if len(groups) > num_samples:
        raise InstanceError(
            f"{len(groups)} groups of {num_samples} samples; at least"
            f" {len(groups) - num_samples} would be empty: use fewer groups"
        )
    for number, group in enumerate(groups):
        if len(group) == 0:
            raise InstanceError(f"group {number} is empty; leave it out")
    member_N = int_array(
        np.concatenate([np.zeros(0, dtype=np.int64), *map(np.asarray, groups)]),
        name="groups",
        ndim=1,
        minimum=0,
    )
    if member_N.max(initial=0) >= num_samples:
        raise InstanceError(
            f"the groups name sample {member_N.max()}; there are {num_samples}"
        )
    count_N = np.bincount(member_N, minlength=num_samples)
    missing, repeated = np.flatnonzero(count_N == 0), np.flatnonzero(count_N > 1)
    if missing.size or repeated.size:
        raise InstanceError(
            f"the groups miss {missing.size} samples {missing[:5].tolist()} and repeat"
            f" {repeated.size} {repeated[:5].tolist()}; every sample belongs to one"
        )
    return WindowPlacementInstance(
        demand_GLE=_group_sums(demand_NLE, groups), num_ep_ranks=num_ep_ranks
    )


def sampled_groups(
    demand_NLE: IntArray,
    *,
    group_size: int,
    num_groups: int,
    num_ep_ranks: int,
    seed: int,
) -> WindowPlacementInstance:
    """Return an instance of drawn groups, for when no layout says who meets.

    Groups are dealt from shuffled samples, and shuffled again when they run out, so
    that no sample is twice in a group and all are drawn about equally often.

    Parameters
    ----------
    group_size
        Samples expected in a group, at most N.
    num_groups
        How many groups to draw; more than N / `group_size` reuse samples.

    Raises
    ------
    InstanceError
        For a group larger than the window.
    """
    from rpopt.counter import generator  # loads numpy.random

    group_size = positive_int(group_size, name="group_size")
    num_groups = positive_int(num_groups, name="num_groups")
    num_samples = len(demand_NLE)
    if group_size > num_samples:
        raise InstanceError(
            f"groups of {group_size} samples cannot be drawn from {num_samples}; use a"
            " smaller group_size"
        )
    rng, per_deal = generator(seed, _STREAM), num_samples // group_size
    deals = [
        rng.permutation(num_samples)[: per_deal * group_size]
        for _ in range(-(-num_groups // per_deal))
    ]
    groups = np.concatenate(deals).reshape(-1, group_size)[:num_groups]
    return WindowPlacementInstance(
        demand_GLE=_group_sums(demand_NLE, groups), num_ep_ranks=num_ep_ranks
    )


def _group_sums(
    demand_NLE: IntArray, groups: "Sequence[Sequence[int]] | IntArray"
) -> Int64Array:
    sums = [demand_NLE[list(group)].sum(axis=0, dtype=np.int64) for group in groups]
    return np.array(sums).reshape(-1, *demand_NLE.shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlacementCost:
    """What a placement costs on given groups.

    Parameters
    ----------
    peak_GL
        Largest rank load of each group and layer, without weights.
    total_L
        Weighted sum of the peaks: the objective, layer by layer.
    mean_L
        Weighted sum of the mean rank loads.
    """

    peak_GL: Int64Array
    total_L: Int64Array
    mean_L: npt.NDArray[np.float64]

    @property
    def peak_over_mean_L(self) -> npt.NDArray[np.float64]:
        """Sum of peaks over sum of means; 1 where a layer has no demand."""
        ones_L = np.ones_like(self.mean_L)
        return np.divide(self.total_L, self.mean_L, out=ones_L, where=self.mean_L > 0)


def evaluate_window(
    instance: WindowPlacementInstance, placement: Placement
) -> WindowPlacementCost:
    """Return the exact cost of a placement."""
    assert instance.weight_G is not None
    demand_GLE, ranks = instance.demand_GLE, instance.num_ep_ranks
    slots_GLE = np.take_along_axis(
        demand_GLE, placement.expert_of_slot_LE[None], axis=2
    )
    load_GLP = slots_GLE.reshape(*demand_GLE.shape[:2], ranks, -1).sum(axis=3)
    peak_GL = load_GLP.max(axis=2)
    return WindowPlacementCost(
        peak_GL=peak_GL,
        total_L=instance.weight_G @ peak_GL,
        mean_L=(instance.weight_G @ load_GLP.sum(axis=2)) / ranks,
    )


def check_window(
    instance: WindowPlacementInstance, placement: Placement
) -> list[Violation]:
    """Return every broken constraint; an empty list means feasible."""
    return check(instance.aggregate, placement)
