"""Lower bounds on the peak of each layer, recomputed from their evidence in integers.

With M = E / P experts per rank, the peak is at least each of

mean
    the total divided by P, rounded up;
pigeonhole, q = 1 to M
    of the (q - 1) P + 1 hottest experts, q share a rank: the q coldest of those, and
    the M - q coldest of all (Dell'Amico and Martello, "Bounds for the cardinality
    constrained P||Cmax problem", Journal of Scheduling 4, 2001);
spread, q = 2 to P
    if two of the q hottest experts share a rank: the two coldest of those, and the
    M - 2 coldest of all. If not, they are on q ranks with q (M - 1) companions: one
    rank has at least the mean of the q hottest and the q (M - 1) coldest, and one has
    at least the q-th hottest, the q (M - 1)-th coldest and the M - 2 coldest. The
    smaller of both cases holds.

The best of these is exact for one expert per rank, and for two (the peak of folding).
The partition bound, by search, is in `rpopt.placement.partition`.

Axis letters: L MoE layers, E experts, P EP ranks, Q choices of q.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.placement import partition
from rpopt.placement.instance import PlacementInstance
from rpopt.records import Int64Array


def peak_bounds(instance: PlacementInstance) -> tuple[Bound, ...]:
    """Return the strongest bound of every layer, the simplest among equals.

    The evidence names the layer and, except for the mean, q and the expert that
    decides: the coldest of the hottest experts that the bound is about.
    """
    loads = SortedLoads.of(instance)
    value_LQ = np.hstack([method(loads) for method in METHODS.values()])
    best_L = value_LQ.argmax(axis=1)
    claims = [
        (name, q)
        for name, method in METHODS.items()
        for q in range(_FIRST_Q[name], _FIRST_Q[name] + method(loads).shape[1])
    ]
    return tuple(
        Bound(
            name=claims[best][0],
            kind="arithmetic",
            value=int(value_LQ[layer, best]),
            evidence=_evidence(loads, layer, *claims[best]),
        )
        for layer, best in enumerate(best_L.tolist())
    )


def recheck(instance: PlacementInstance, bound: Bound) -> int:
    """Return the peak that the evidence of an arithmetic bound proves.

    Raises
    ------
    CertificateError
        When the bound is unknown, or its evidence does not fit the instance.
    """
    if bound.name == partition.NAME:
        return partition.recheck(instance, bound)
    if bound.name not in METHODS:
        raise CertificateError(
            f"no arithmetic bound of placement is called {bound.name!r}; known are"
            f" {', '.join([*METHODS, partition.NAME])}"
        )
    loads = SortedLoads.of(instance)
    value_LQ = METHODS[bound.name](loads)
    layer, q = bound.evidence.get("layer"), bound.evidence.get("q", 1)
    column = q - _FIRST_Q[bound.name] if type(q) is int else -1
    if (
        type(layer) is not int
        or not 0 <= layer < value_LQ.shape[0]
        or not 0 <= column < value_LQ.shape[1]
        or dict(bound.evidence) != _evidence(loads, layer, bound.name, q)
    ):
        raise CertificateError(
            f"the evidence {dict(bound.evidence)} of bound {bound.name!r} does not fit"
            " the instance"
        )
    return int(value_LQ[layer, column])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisiveExpert:
    """An expert so hot that its layer cannot be balanced by any placement.

    Parameters
    ----------
    layer, expert
        Which expert of which layer (position in the instance).
    load
        Its token copies.
    floor
        The same plus its coldest possible companions: no peak is smaller.
    mean
        Mean rank load, rounded up; smaller than the floor.
    """

    layer: int
    expert: int
    load: int
    floor: int
    mean: int

    def __str__(self) -> str:
        """Say why no permutation helps."""
        return (
            f"layer {self.layer}: no permutation can help: bound set by expert"
            f" {self.expert} ({self.load} token copies, {self.floor} with its coldest"
            f" possible companions; the mean rank load is {self.mean})"
        )


def decisive_experts(instance: PlacementInstance) -> tuple[DecisiveExpert, ...]:
    """Return the layers whose hottest expert alone keeps the peak above the mean."""
    loads = SortedLoads.of(instance)
    floor_L, mean_L = pigeonhole(loads)[:, 0], mean(loads)[:, 0]
    return tuple(
        DecisiveExpert(
            layer=layer,
            expert=int(loads.order_LE[layer, 0]),
            load=int(loads.hot_LE[layer, 0]),
            floor=int(floor_L[layer]),
            mean=int(mean_L[layer]),
        )
        for layer in np.flatnonzero(floor_L > mean_L).tolist()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedLoads:
    """The loads of every layer, hottest first, and their running sums.

    Parameters
    ----------
    order_LE
        Experts by load, hottest first, the lowest id among equals.
    hot_LE
        Their loads.
    hottest_LE1, coldest_LE1
        Sum of the hottest, and of the coldest, 0 to E experts.
    num_ep_ranks, per_rank
        P and M = E / P.
    """

    order_LE: Int64Array
    hot_LE: Int64Array
    hottest_LE1: Int64Array
    coldest_LE1: Int64Array
    num_ep_ranks: int
    per_rank: int

    @classmethod
    def of(cls, instance: PlacementInstance) -> "SortedLoads":
        """Sort the loads of an instance."""
        order_LE = np.argsort(-instance.load_LE, axis=1, kind="stable")
        hot_LE = np.take_along_axis(instance.load_LE, order_LE, axis=1)
        pad = ((0, 0), (1, 0))
        return cls(
            order_LE=order_LE,
            hot_LE=hot_LE,
            hottest_LE1=np.pad(hot_LE.cumsum(axis=1), pad),
            coldest_LE1=np.pad(hot_LE[:, ::-1].cumsum(axis=1), pad),
            num_ep_ranks=instance.num_ep_ranks,
            per_rank=instance.experts_per_rank,
        )


def mean(loads: SortedLoads) -> Int64Array:
    """Return the mean rank load, rounded up, [L, 1]."""
    return -(-loads.hottest_LE1[:, -1:] // loads.num_ep_ranks)


def pigeonhole(loads: SortedLoads) -> Int64Array:
    """Return the pigeonhole bounds for q = 1 to M, [L, M]."""
    q_Q = np.arange(1, loads.per_rank + 1)
    crowd_Q = _crowd("pigeonhole", q_Q, loads.num_ep_ranks)
    crowded_LQ = loads.hottest_LE1[:, crowd_Q] - loads.hottest_LE1[:, crowd_Q - q_Q]
    return crowded_LQ + loads.coldest_LE1[:, loads.per_rank - q_Q]


def spread(loads: SortedLoads) -> Int64Array:
    """Return the spread bounds for q = 2 to P, [L, P - 1]; none if M = 1."""
    hottest_LE1, coldest_LE1 = loads.hottest_LE1, loads.coldest_LE1
    if loads.per_rank == 1:
        return np.empty((len(hottest_LE1), 0), dtype=np.int64)
    q_Q = np.arange(2, loads.num_ep_ranks + 1)
    companions_Q = q_Q * (loads.per_rank - 1)
    others_L1 = coldest_LE1[:, loads.per_rank - 2, None]
    share_LQ = hottest_LE1[:, q_Q] - hottest_LE1[:, q_Q - 2] + others_L1
    mean_LQ = -(-(hottest_LE1[:, q_Q] + coldest_LE1[:, companions_Q]) // q_Q)
    pair_LQ = loads.hot_LE[:, q_Q - 1] + loads.hot_LE[:, -companions_Q]
    bound_LQ: Int64Array = np.minimum(
        share_LQ, np.maximum(mean_LQ, pair_LQ + others_L1)
    )
    return bound_LQ


METHODS = {"mean": mean, "pigeonhole": pigeonhole, "spread": spread}
"""Bounds of every layer for every q, by name; the simplest first."""
_FIRST_Q = {"mean": 1, "pigeonhole": 1, "spread": 2}


def _crowd(name: str, q: Any, num_ep_ranks: int) -> Any:
    """Return how many of the hottest experts a bound is about."""
    return (q - 1) * num_ep_ranks + 1 if name == "pigeonhole" else q


def _evidence(loads: SortedLoads, layer: int, name: str, q: int) -> Mapping[str, Any]:
    if name == "mean":
        return {"layer": layer}
    crowd = _crowd(name, q, loads.num_ep_ranks)
    expert = int(loads.order_LE[layer, crowd - 1])
    return {"layer": layer, "q": q, "expert": expert}
