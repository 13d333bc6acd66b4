"""Scenarios of the next window: what a placement costs in each, and at worst.

A scenario is a set of groups of a window placement instance: past windows, forecasts,
one group each for their aggregate demand. Scenarios are compared as they are, so give
them equal copies where they stand for windows of equal size.

Axis letters: A scenarios, G groups, L MoE layers.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.placement.bounds_window import window_bounds
from rpopt.placement.instance_window import WindowPlacementInstance, evaluate_window
from rpopt.plans import Placement
from rpopt.records import Int64Array, int_array


def scenarios_of_groups(
    instance: WindowPlacementInstance, scenario_G: npt.ArrayLike | None
) -> Int64Array:
    """Return the scenario of each group, checked; None makes each group one.

    Raises
    ------
    InstanceError
        When groups miss a scenario, or a number between the scenarios has no group.
    """
    if scenario_G is None:
        return np.arange(instance.num_groups)
    found_G = int_array(scenario_G, name="scenario_G", ndim=1, minimum=0)
    if found_G.size != instance.num_groups:
        raise InstanceError(
            f"{found_G.size} scenarios for {instance.num_groups} groups; give one each"
        )
    empty = np.setdiff1d(np.arange(found_G.max()), found_G)
    if empty.size:
        raise InstanceError(
            f"scenario {empty[0]} has no group; number scenarios from 0 without gaps"
        )
    return found_G


def scenario_totals(
    instance: WindowPlacementInstance, placement: Placement, scenario_G: Int64Array
) -> Int64Array:
    """Return the weighted sum of peaks in each scenario, [A, L]."""
    assert instance.weight_G is not None
    peak_GL = evaluate_window(instance, placement).peak_GL
    total_AL = np.zeros((scenario_G.max() + 1, peak_GL.shape[1]), dtype=np.int64)
    np.add.at(total_AL, scenario_G, instance.weight_G[:, None] * peak_GL)
    return total_AL


def worst_bound(
    instance: WindowPlacementInstance, scenario_G: Int64Array
) -> Int64Array:
    """Return a lower bound on the worst scenario of any placement, [L].

    The worst is at least that of each scenario alone, and at least the mean over all.
    """
    assert instance.weight_G is not None
    num_scenarios = int(scenario_G.max()) + 1
    alone = [
        replace(
            instance,
            demand_GLE=instance.demand_GLE[scenario_G == a],
            weight_G=instance.weight_G[scenario_G == a],
        )
        for a in range(num_scenarios)
    ]
    alone_AL = np.array([_bounds(scenario) for scenario in alone])
    mean_L = -(-_bounds(instance) // num_scenarios)
    return np.maximum(alone_AL.max(axis=0), mean_L)


def _bounds(instance: WindowPlacementInstance) -> Int64Array:
    return np.array([bound.value for bound in window_bounds(instance)], dtype=np.int64)
