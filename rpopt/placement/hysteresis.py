"""Hysteresis: a layer moves only when its expected saving pays for the move.

A move costs time once; a better placement saves time in every step until it is
replaced. Layers are decided one by one, since their peaks add up and so do their moves.
What was expected is kept beside what came of it, so that a forecast that promises too
much shows.

Axis letters: L MoE layers, E experts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.records import BoolArray, Int64Array

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Which layers move, what that is expected to save, and what it costs.

    Parameters
    ----------
    placement
        The proposed placement in the layers that move, the current one elsewhere.
    moves_L
        Whether a layer moves.
    num_experts_L
        Experts that change their EP rank; 0 in layers that stay.
    saving_s_L
        Expected saving per step; 0 in layers that stay.
    cost_s_L
        Cost of the move; 0 in layers that stay.
    life_steps
        Steps for which the placement is expected to stay in force.
    """

    placement: Placement
    moves_L: BoolArray
    num_experts_L: Int64Array
    saving_s_L: FloatArray
    cost_s_L: FloatArray
    life_steps: float

    @property
    def churn(self) -> float:
        """Share of all experts that change their EP rank."""
        return float(self.num_experts_L.sum()) / self.placement.slot_LE.size

    @property
    def expected_s(self) -> float:
        """Expected saving over the life of the placement, the cost taken off."""
        return self.life_steps * float(self.saving_s_L.sum()) - float(
            self.cost_s_L.sum()
        )


def choose_moves(
    current: Placement,
    proposed: Placement,
    *,
    saving_s_L: npt.ArrayLike,
    cost_per_expert_s: float,
    cost_per_layer_s: float = 0.0,
    life_steps: float,
) -> Moves:
    """Take over the layers of a proposed placement whose move pays.

    A layer moves when saving x life > cost of its moved experts + cost of the layer. A
    layer whose experts all keep their EP rank has no cost and no saving: it stays.

    Parameters
    ----------
    current, proposed
        The placement in force, and the one that might replace it; first renumber the
        EP ranks of the latter (`rpopt.placement.search.relabel`), or everything moves.
    saving_s_L
        Seconds that the proposal saves per step in each layer, as far as one can tell;
        negative where it loses.
    cost_per_expert_s, cost_per_layer_s
        Measured seconds to move one expert, and to touch a layer at all.
    life_steps
        Steps until the next change of placement, as far as one can tell.

    Raises
    ------
    InstanceError
        When the placements do not go together, or a number is negative or not finite.
    """
    num_experts_L = proposed.num_moved(current)
    saving_L = _finite(saving_s_L, "saving_s_L", num_experts_L.size)
    for name, value in (
        ("cost_per_expert_s", cost_per_expert_s),
        ("cost_per_layer_s", cost_per_layer_s),
        ("life_steps", life_steps),
    ):
        if not (math.isfinite(value) and value >= 0):
            raise InstanceError(f"{name} = {value}; give a number of at least 0")
    cost_L = num_experts_L * cost_per_expert_s + cost_per_layer_s
    moves_L = (num_experts_L > 0) & (saving_L * life_steps > cost_L)
    slot_LE = np.where(moves_L[:, None], proposed.slot_LE, current.slot_LE)
    return Moves(
        placement=Placement(slot_LE=slot_LE, num_ep_ranks=current.num_ep_ranks),
        moves_L=moves_L,
        num_experts_L=np.where(moves_L, num_experts_L, 0),
        saving_s_L=np.where(moves_L, saving_L, 0.0),
        cost_s_L=np.where(moves_L, cost_L, 0.0),
        life_steps=float(life_steps),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesReport:
    """What moves were expected to save, and what came of it.

    Parameters
    ----------
    steps
        Steps that were reported.
    expected_s, realised_s
        Saving over these steps, as expected and as measured; the cost is not taken off.
    cost_s
        Cost of the moves.
    churn
        Mean share of the experts that moved per step.
    """

    steps: int
    expected_s: float
    realised_s: float
    cost_s: float
    churn: float

    @property
    def paid(self) -> bool:
        """Whether the moves have paid so far."""
        return self.realised_s >= self.cost_s

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.steps} steps: expected to save {self.expected_s:.3g} s, saved"
            f" {self.realised_s:.3g} s, moves cost {self.cost_s:.3g} s,"
            f" {100 * self.churn:.1f} % of the experts moved per step"
        )


def report_moves(steps: Iterable[tuple[Moves | None, Any, Any]]) -> MovesReport:
    """Sum up expected and realised savings over steps.

    Parameters
    ----------
    steps
        For each step: the moves made before it (None where none were considered); the
        seconds that every layer would have taken under the placement before the first
        of all moves; and those it took, [L] each.

    Raises
    ------
    InstanceError
        When the seconds of a step do not fit the moves, or are not finite.
    """
    count, expected, realised, cost, churn = 0, 0.0, 0.0, 0.0, 0.0
    rate_s = 0.0  # expected saving per step of all moves so far
    for moves, without_L, with_L in steps:
        if moves is not None:
            rate_s += float(moves.saving_s_L.sum())
            cost += float(moves.cost_s_L.sum())
            churn += moves.churn
        size = np.size(without_L) if moves is None else moves.moves_L.size
        before_L = _finite(without_L, "seconds without moves", size)
        after_L = _finite(with_L, "seconds with moves", size)
        count += 1
        expected += rate_s
        realised += float((before_L - after_L).sum())
    return MovesReport(
        steps=count,
        expected_s=expected,
        realised_s=realised,
        cost_s=cost,
        churn=churn / count if count else 0.0,
    )


def _finite(value: npt.ArrayLike, name: str, size: int) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (size,) or not np.isfinite(array).all():
        raise InstanceError(
            f"{name} has shape {array.shape} and"
            f" {int((~np.isfinite(array)).sum())} entries that are not finite; give one"
            f" finite number for each of {size} layers"
        )
    return array
