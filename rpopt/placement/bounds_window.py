"""Lower bounds on the weighted sum of the peaks of groups, in integers.

groups
    Every group's peak is at least the bound of that group alone.
aggregate
    A sum of maxima is at least the maximum of the sums: the bound of the weighted
    aggregate demand.

Both use `rpopt.placement.bounds`. A third one, which is never below these two, comes
from linear programs: `rpopt.placement.rank_bound`.

Axis letters: G groups, L MoE layers, E experts.
"""

import numpy as np

from rpopt.certificate import Bound
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.instance import PlacementInstance
from rpopt.placement.instance_window import WindowPlacementInstance
from rpopt.records import Int64Array


def window_bounds(instance: WindowPlacementInstance) -> tuple[Bound, ...]:
    """Return the stronger bound of every layer; its evidence names the layer."""
    groups_L, aggregate_L = groups_bound(instance), aggregate_bound(instance)
    return tuple(
        Bound(
            name="groups" if ours >= theirs else "aggregate",
            kind="arithmetic",
            value=max(ours, theirs),
            evidence={"layer": layer},
        )
        for layer, (ours, theirs) in enumerate(
            zip(groups_L.tolist(), aggregate_L.tolist(), strict=True)
        )
    )


def groups_bound(instance: WindowPlacementInstance) -> Int64Array:
    """Return the weighted sum of the bounds of the groups alone, [L]."""
    total_L: Int64Array = group_floors(instance).sum(axis=0)
    return total_L


def group_floors(instance: WindowPlacementInstance) -> Int64Array:
    """Return the weighted bound of each group alone, [G, L]."""
    assert instance.weight_G is not None
    num_groups, num_layers, num_experts = instance.demand_GLE.shape
    rows = PlacementInstance(
        load_LE=instance.demand_GLE.reshape(-1, num_experts),
        num_ep_ranks=instance.num_ep_ranks,
    )
    bound_GL = _values(rows).reshape(num_groups, num_layers)
    floor_GL: Int64Array = instance.weight_G[:, None] * bound_GL
    return floor_GL


def aggregate_bound(instance: WindowPlacementInstance) -> Int64Array:
    """Return the bound of the weighted aggregate demand, [L]."""
    return _values(instance.aggregate)


def _values(instance: PlacementInstance) -> Int64Array:
    return np.array([bound.value for bound in peak_bounds(instance)], dtype=np.int64)
