"""Lower bounds on J for a placement and a number of rows, exact in ticks.

Each is recomputed from its evidence in integers. Axis letters: I items, C attention
classes, L MoE layers, P EP ranks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.layout import enumeration, leader_bound
from rpopt.layout.instance import LayoutInstance
from rpopt.records import Int64Array, int_array, positive_int


def layout_bounds(instance: LayoutInstance) -> tuple[Bound, ...]:
    """Return every bound that needs no solver."""
    return tuple(method(instance) for method in METHODS.values())


def volume(instance: LayoutInstance) -> Bound:
    """Return the volume bound: everything spread evenly, but for the fullest EP ranks.

    The h ranks of a group hold its attention, so over all groups the largest ranks of
    one class sum to at least its total / h, rounded up. Whatever the groups are, their
    peaks in one layer sum to at least the total of any one EP rank; the evidence names
    the fullest. These are sums over all S shards. With step coupling the slowest shard
    is at least the average one; with row coupling the same holds in every row. So J is
    at least their sum / S, rounded up once: rounded term by term it would be wrong, as
    each term may have another slowest shard.
    """
    fullest_L = _total_LP(instance).argmax(axis=1).tolist()
    return _proven(instance, "volume", {"ep_rank_L": fullest_L})


def largest_item(instance: LayoutInstance) -> Bound:
    """Return the cost of the dearest item on its own; the evidence names it.

    Its group costs at least that, so do its shard and its row. This exceeds the volume
    bound where one sample is longer than a perfectly balanced share of the window.
    """
    dearest = int(_item_ticks(instance).argmax())
    return _proven(instance, "largest item", {"item": dearest})


METHODS: dict[str, Callable[[LayoutInstance], Bound]] = {
    "volume": volume,
    "largest item": largest_item,
}
"""Bounds that need nothing but the instance."""


def recheck(instance: LayoutInstance, bound: Bound) -> int:
    """Return the ticks of J that the evidence of an arithmetic bound proves.

    Raises
    ------
    CertificateError
        When the bound is unknown, or its evidence is malformed or proves nothing.
    """
    if bound.name not in RECHECKS:
        raise CertificateError(
            f"no arithmetic bound of layout is called {bound.name!r}; known are"
            f" {', '.join(RECHECKS)}"
        )
    try:
        return RECHECKS[bound.name](instance, bound)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(
            f"the evidence of bound {bound.name!r} does not hold: {error}"
        ) from error


def recheck_volume(instance: LayoutInstance, bound: Bound) -> int:
    """Return the ticks that one EP rank per layer, in the evidence, proves."""
    total_LP = _total_LP(instance)
    (given_L,) = _fields(bound.evidence, "ep_rank_L")
    rank_L = int_array(given_L, name="ep_rank_L", ndim=1, minimum=0)
    if rank_L.size != total_LP.shape[0]:
        raise InstanceError(f"{rank_L.size} EP ranks for {total_LP.shape[0]} layers")
    copies_L = total_LP[np.arange(rank_L.size), rank_L].tolist()
    weights = instance.layer_weight_ticks_L.tolist()
    experts = sum(w * copies for w, copies in zip(weights, copies_L, strict=True))
    attention_C = instance.attention_ticks_IC.sum(axis=0).tolist()
    attention = sum(-(-total // instance.shard_size) for total in attention_C)
    return instance.offset_ticks - (-(attention + experts) // instance.num_shards)


def recheck_largest_item(instance: LayoutInstance, bound: Bound) -> int:
    """Return the ticks that the item in the evidence proves."""
    (given,) = _fields(bound.evidence, "item")
    item = positive_int(given, name="item", minimum=0)
    return instance.offset_ticks + int(_item_ticks(instance)[item])


RECHECKS: dict[str, Callable[[LayoutInstance, Bound], int]] = {
    "volume": recheck_volume,
    "largest item": recheck_largest_item,
    leader_bound.NAME: leader_bound.recheck,
    enumeration.NAME: enumeration.recheck,
}
"""How each arithmetic bound is recomputed."""


def _proven(instance: LayoutInstance, name: str, evidence: Mapping[str, Any]) -> Bound:
    bound = Bound(name=name, kind="arithmetic", value=0, evidence=evidence)
    value = RECHECKS[name](instance, bound)
    return Bound(name=name, kind="arithmetic", value=value, evidence=evidence)


def _fields(evidence: Mapping[str, Any], *names: str) -> list[Any]:
    if set(evidence) != set(names):
        raise InstanceError(f"it has the fields {sorted(evidence)}, not {names}")
    return [evidence[name] for name in names]


def _total_LP(instance: LayoutInstance) -> Int64Array:
    total_LP: Int64Array = instance.load_ILP.sum(axis=0, dtype=np.int64)
    return total_LP


def _item_ticks(instance: LayoutInstance) -> Int64Array:
    """Return what a group of one item alone costs, [I]."""
    peak_IL = instance.load_ILP.max(axis=2).astype(np.int64)
    return (
        instance.attention_ticks_IC.sum(axis=1)
        + peak_IL @ instance.layer_weight_ticks_L
    )
