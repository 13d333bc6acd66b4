"""The placement problem: an instance, the evaluator and the checker.

The solution type is `rpopt.plans.Placement`. Each MoE layer is a problem of its own:
spread the experts over the EP ranks, equally many per rank, so that the largest rank
load is smallest (equal-cardinality makespan).

Axis letters: L MoE layers, E experts, P EP ranks.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rpopt.checks import Violation
from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.records import Int64Array, Record, freeze, int_array, positive_int

MAX_LAYER_LOAD = 2**48
"""Loads of one layer sum to less, so that no sum or scaled sum overflows 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementInstance(Record):
    """Spread the experts of every layer over the EP ranks.

    Parameters
    ----------
    load_LE
        Token copies wanted from each expert; below `MAX_LAYER_LOAD` per layer in all.
    num_ep_ranks
        P; divides E.
    """

    SCHEMA: ClassVar[str] = "rpopt.placement/1"

    load_LE: Int64Array
    num_ep_ranks: int

    def __post_init__(self) -> None:
        """Check sizes and ranges."""
        load_LE = int_array(self.load_LE, name="load_LE", ndim=2, minimum=0)
        ranks = positive_int(self.num_ep_ranks, name="num_ep_ranks")
        num_layers, num_experts = load_LE.shape
        if num_layers == 0 or num_experts == 0:
            raise InstanceError(f"load_LE has shape {load_LE.shape}; no axis may be 0")
        if num_experts % ranks:
            raise InstanceError(
                f"{num_experts} experts cannot be spread equally over ep = {ranks};"
                " choose an ep that divides them"
            )
        _check_totals(load_LE)
        freeze(self, "load_LE", load_LE)
        freeze(self, "num_ep_ranks", ranks)

    @property
    def experts_per_rank(self) -> int:
        """E / P."""
        return int(self.load_LE.shape[1]) // self.num_ep_ranks


def _check_totals(load_LE: Int64Array) -> None:
    """Check the sum of every layer, in floats, which are exact below 2**53."""
    total_L = load_LE.sum(axis=1, dtype=np.float64)
    layer = int(total_L.argmax())
    if total_L[layer] >= MAX_LAYER_LOAD:
        raise InstanceError(
            f"the loads of layer {layer} sum to {total_L[layer]:.4g}; they must sum to"
            f" less than {MAX_LAYER_LOAD}: divide them"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCost:
    """What a placement costs.

    Parameters
    ----------
    load_LP
        Token copies received by each EP rank.
    peak_L
        Largest load of each layer: the objective, layer by layer.
    """

    load_LP: Int64Array
    peak_L: Int64Array

    @property
    def peak_over_mean_L(self) -> "np.ndarray":
        """Peak over mean rank load of each layer; 1 where a layer has no load."""
        mean = self.load_LP.mean(axis=1)
        return np.divide(self.peak_L, mean, out=np.ones_like(mean), where=mean > 0)


def evaluate(instance: PlacementInstance, placement: Placement) -> PlacementCost:
    """Return the exact cost of a placement."""
    slots_LE = np.take_along_axis(instance.load_LE, placement.expert_of_slot_LE, axis=1)
    num_layers = slots_LE.shape[0]
    load_LP = slots_LE.reshape(num_layers, instance.num_ep_ranks, -1).sum(axis=2)
    return PlacementCost(load_LP=load_LP, peak_L=load_LP.max(axis=1))


def check(instance: PlacementInstance, placement: Placement) -> list[Violation]:
    """Return every broken constraint; an empty list means feasible.

    That each row is a permutation is already guaranteed by `Placement` itself.
    """
    found = []
    if placement.slot_LE.shape != instance.load_LE.shape:
        message = (
            f"placed {placement.slot_LE.shape} (layers, experts), the instance has"
            f" {instance.load_LE.shape}"
        )
        found.append(Violation(constraint="every expert once", message=message))
    if placement.num_ep_ranks != instance.num_ep_ranks:
        message = f"{placement.num_ep_ranks} EP ranks, not {instance.num_ep_ranks}"
        found.append(Violation(constraint="EP ranks", message=message))
    return found
