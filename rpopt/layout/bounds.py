"""Lower bounds on J for a placement and a number of rows, exact in ticks.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks.
"""

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.layout.instance import LayoutInstance


def layout_bounds(instance: LayoutInstance) -> tuple[Bound, ...]:
    """Return every bound that needs no solver."""
    return (volume(instance),)


def volume(instance: LayoutInstance) -> Bound:
    """Return the volume bound: every sum spread evenly.

    In each class the sum over groups of the largest rank is at least the total / h,
    since the h ranks of a group hold it; in each layer the sum over groups of the
    largest EP rank is at least the largest total of one EP rank. Both are sums over
    all S shards, and the slowest shard is at least the average one; with row coupling
    the same holds row by row. J is an integer number of ticks, so the sum is rounded
    up once.
    """
    attention_C = instance.attention_ticks_IC.sum(axis=0).tolist()
    peak_L = _largest_totals(instance)
    weights = instance.layer_weight_ticks_L.tolist()
    shards = instance.num_shards
    attention = sum(-(-total // instance.shard_size) for total in attention_C)
    experts = sum(w * peak for w, peak in zip(weights, peak_L, strict=True))
    return Bound(
        name="volume",
        kind="arithmetic",
        value=instance.offset_ticks + -(-(attention + experts) // shards),
    )


def recheck(instance: LayoutInstance, bound: Bound) -> int:
    """Recompute an arithmetic bound from its evidence, without a solver.

    Raises
    ------
    CertificateError
        When no such bound is known.
    """
    if bound.name != "volume":
        raise CertificateError(f"no layout bound is called {bound.name!r}")
    return volume(instance).value


def _largest_totals(instance: LayoutInstance) -> list[int]:
    total_LP = instance.load_ILP.sum(axis=0, dtype=np.int64)
    return [int(row.max()) if row.size else 0 for row in total_LP]
