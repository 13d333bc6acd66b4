"""Robust placement: the smallest worst case over scenarios, layer by layer.

The annealer makes a weighted sum of peaks small, so scenarios are weighted: the worst
most, those close to it in proportion. As placements answer weights, scenarios take
turns in being the worst; the weights of all rounds add up (fictitious play; Robinson,
1951), and every layer keeps the best placement of all rounds. To make a fixed mix of
scenarios small instead, give it as the weights of `place_window`.

Axis letters: A scenarios, G groups, L MoE layers, E experts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rpopt.anneal.placement import DEFAULT_EFFORT, place_window
from rpopt.checks import require_feasible
from rpopt.counter import key
from rpopt.placement.heuristics import place
from rpopt.placement.instance_window import WindowPlacementInstance, check_window
from rpopt.placement.scenarios import (
    scenario_totals,
    scenarios_of_groups,
    worst_bound,
)
from rpopt.plans import Placement
from rpopt.records import Int64Array

_STREAM = 0x726F62757374  # "robust"
_ROUNDS = 16
_NEAR = 20  # scenarios within one part in so many of the worst have a weight
_MOST_WEIGHT = 64


def place_robust(
    instance: WindowPlacementInstance,
    *,
    scenario_G: npt.ArrayLike | None = None,
    starts: Sequence[Placement] = (),
    seed: int = 0,
    effort: int = DEFAULT_EFFORT // 4,
    threads: int | None = None,
) -> Placement:
    """Return a placement whose worst scenario is small in every layer.

    In every layer it is at most that of each start: with the present placement among
    them, never worse than staying.

    Parameters
    ----------
    instance
        The groups of all scenarios.
    scenario_G
        Scenario of each group, numbered from 0; None makes each group one.
    starts
        Placements to start from; the aggregate placement when none is given.
    seed, effort, threads
        As in `place_window`, which is called once per round.

    Raises
    ------
    InstanceError
        When the scenarios do not fit the groups.
    InfeasibleError
        When a start does not fit the instance.
    """
    scenarios_G = scenarios_of_groups(instance, scenario_G)
    starts = starts or [place(instance.aggregate, seed=seed)]
    for number, start in enumerate(starts):
        require_feasible(check_window(instance, start), f"start {number}")
    search = _Best(instance, scenarios_G, starts)
    bound_L = worst_bound(instance, scenarios_G)
    placement = search.placement
    weight_AL = np.ones((scenarios_G.max() + 1, bound_L.size), dtype=np.int64)
    for number in range(_ROUNDS):
        if (search.worst_L <= bound_L).all():
            break
        placement = place_window(
            _weighted(instance, weight_AL[scenarios_G]),
            starts=[placement],
            seed=key(seed, _STREAM, number),
            effort=effort,
            threads=threads,
        )
        weight_AL += scenario_weights(search.keep(placement))
    return Placement.from_ranks(
        search.placement.rank_LE, instance.num_ep_ranks, starts[0]
    )


def scenario_weights(total_AL: Int64Array) -> Int64Array:
    """Return 1 to `_MOST_WEIGHT` for each scenario: more, the closer to the worst."""
    worst_L = total_AL.max(axis=0)
    near_L = np.maximum(1, worst_L // _NEAR)
    slack_AL = np.maximum(0, near_L - (worst_L - total_AL))
    return 1 + (_MOST_WEIGHT - 1) * slack_AL // near_L


class _Best:
    """The best placement of each layer so far, by its worst scenario."""

    def __init__(
        self,
        instance: WindowPlacementInstance,
        scenario_G: Int64Array,
        starts: Sequence[Placement],
    ) -> None:
        self._instance, self._scenario_G = instance, scenario_G
        self.placement = starts[0]
        self.worst_L = scenario_totals(instance, starts[0], scenario_G).max(axis=0)
        for start in starts[1:]:
            self.keep(start)

    def keep(self, placement: Placement) -> Int64Array:
        """Take over the layers that are better; return what the scenarios cost."""
        total_AL = scenario_totals(self._instance, placement, self._scenario_G)
        better_L = total_AL.max(axis=0) < self.worst_L
        self.worst_L = np.minimum(self.worst_L, total_AL.max(axis=0))
        self.placement = Placement(
            slot_LE=np.where(
                better_L[:, None], placement.slot_LE, self.placement.slot_LE
            ),
            num_ep_ranks=placement.num_ep_ranks,
        )
        return total_AL


def _weighted(
    instance: WindowPlacementInstance, weight_GL: Int64Array
) -> WindowPlacementInstance:
    """Weight groups layer by layer: a weighted peak is the peak of weighted demand."""
    return replace(instance, demand_GLE=instance.demand_GLE * weight_GL[:, :, None])
