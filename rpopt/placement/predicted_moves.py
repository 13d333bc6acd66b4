"""Moves decided on a forecast, and what became of them in the window that came.

The hysteresis of `rpopt.placement.hysteresis` with savings in token copies: the fall of
the weighted sum of peaks on the expected demand. The next window gives the same sum for
the demand that came, so that expected and realised savings stand side by side.

Axis letters: G groups, L MoE layers.
"""

import math
from dataclasses import dataclass

from rpopt.checks import require_feasible
from rpopt.errors import InstanceError
from rpopt.placement.hysteresis import Moves, choose_moves
from rpopt.placement.instance_window import (
    WindowPlacementInstance,
    check_window,
    evaluate_window,
)
from rpopt.placement.search import relabel
from rpopt.plans import Placement
from rpopt.records import Int64Array


def choose_predicted_moves(
    current: Placement,
    proposed: Placement,
    expected: WindowPlacementInstance,
    *,
    seconds_per_copy: float,
    cost_per_expert_s: float,
    cost_per_layer_s: float = 0.0,
    life_windows: float = 1.0,
) -> Moves:
    """Take over the layers of a proposed placement that pay on the expected demand.

    Parameters
    ----------
    current, proposed
        The placement in force, and the one that might replace it; its EP ranks are
        renumbered so that the fewest experts move.
    expected
        Demand of one window of the placement's life: a forecast as one group, or
        expected groups. Where the first window is known already, give it as groups of
        weight 1, the forecast with the number of windows after it as weight, and leave
        `life_windows` at 1.
    seconds_per_copy
        Seconds that one token copy less at the peak saves: measured expert seconds of
        the critical path over the sum of peaks.
    cost_per_expert_s, cost_per_layer_s
        Measured seconds to move one expert, and to touch a layer at all.
    life_windows
        Windows until the next change of placement, as far as one can tell.

    Raises
    ------
    InstanceError
        When a number is negative or not finite.
    InfeasibleError
        When a placement does not fit the expected demand.
    """
    for name, placement in (("current", current), ("proposed", proposed)):
        require_feasible(check_window(expected, placement), f"the {name} placement")
    if not (math.isfinite(seconds_per_copy) and seconds_per_copy >= 0):
        raise InstanceError(
            f"seconds_per_copy = {seconds_per_copy}; give a number of at least 0"
        )
    proposed = relabel(proposed, current)
    return choose_moves(
        current,
        proposed,
        saving_s_L=_saving(expected, current, proposed) * seconds_per_copy,
        cost_per_expert_s=cost_per_expert_s,
        cost_per_layer_s=cost_per_layer_s,
        life_steps=life_windows,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What moves were expected to save in a window, and what they saved.

    Parameters
    ----------
    expected_L, realised_L
        Token copies by which the weighted sum of peaks falls in each layer, on the
        expected demand and on the demand that came; negative for a loss.
    """

    expected_L: Int64Array
    realised_L: Int64Array

    @property
    def expected(self) -> int:
        """Copies expected to be saved in all layers."""
        return int(self.expected_L.sum())

    @property
    def realised(self) -> int:
        """Copies saved in all layers."""
        return int(self.realised_L.sum())

    def __str__(self) -> str:
        """Say it in one line."""
        lost = int((self.realised_L < 0).sum())
        return (
            f"expected to save {self.expected} copies at the peaks, saved"
            f" {self.realised}; {lost} of {self.realised_L.size} layers lost"
        )


def compare_saving(
    before: Placement,
    after: Placement,
    *,
    expected: WindowPlacementInstance,
    window: WindowPlacementInstance,
) -> Saving:
    """Return what a change of placement saves on expected and on real demand.

    Parameters
    ----------
    before, after
        The placements before and after the moves; for what a placement has saved since
        training began, the first one and the one in force.
    expected
        The demand that the moves were decided on.
    window
        The demand that came.

    Raises
    ------
    InfeasibleError
        When a placement does not fit one of the demands.
    """
    for instance in (expected, window):
        for name, placement in (("old", before), ("new", after)):
            require_feasible(check_window(instance, placement), f"the {name} placement")
    return Saving(
        expected_L=_saving(expected, before, after),
        realised_L=_saving(window, before, after),
    )


def _saving(
    instance: WindowPlacementInstance, before: Placement, after: Placement
) -> Int64Array:
    old, new = (evaluate_window(instance, p).total_L for p in (before, after))
    return old - new
