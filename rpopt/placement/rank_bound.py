"""The one-rank bound on the weighted sum of the peaks of groups: multipliers in.

Look at the EP rank of one expert. With y_g its load in group g, the peak of the group
is at least each of

    y_g,    (T_g - y_g) / (P - 1), the mean of the other ranks,    F_g,

and the sum of all peaks is at least A; T_g is the group's demand, F_g and A are known
(`rpopt.placement.bounds_window`). Multipliers alpha_g, beta_g, the rest of 1, and delta
of these four add up to

    sum of peaks >= sum over e on that rank of c_e + constant,
    c_e = sum over g of (alpha_g - beta_g / (P - 1)) v_ge,

so the expert and its M - 1 cheapest companions bound the sum from below. That is the
relaxation of `formulations.placement_window` with the expert on a rank of its own
choice: the other ranks are alike, so they share the rest evenly. Its duals are good
multipliers (`rpopt.exact.placement_rank`), but any will do.

Axis letters: G groups, E experts, P EP ranks, M experts per rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.placement.bounds_window import aggregate_bound, group_floors
from rpopt.placement.instance_window import WindowPlacementInstance

NAME = "one rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """What proves a one-rank bound of one layer.

    Parameters
    ----------
    layer, expert
        Whose rank is looked at.
    denominator
        Of the multipliers.
    alpha_G, beta_G, delta
        Of the rank's load, of the others' mean and of the aggregate bound; with
        alpha_g + beta_g + delta at most the denominator in every group.
    """

    layer: int
    expert: int
    denominator: int
    alpha_G: tuple[int, ...]
    beta_G: tuple[int, ...]
    delta: int

    def evidence(self) -> dict[str, Any]:
        """Return the multipliers as JSON values."""
        return {
            "layer": self.layer,
            "expert": self.expert,
            "denominator": self.denominator,
            "alpha_G": list(self.alpha_G),
            "beta_G": list(self.beta_G),
            "delta": self.delta,
        }


def value(instance: WindowPlacementInstance, multipliers: Multipliers) -> int:
    """Return the weighted sum of peaks that multipliers prove, exact.

    Raises
    ------
    InstanceError
        When the multipliers do not fit the instance or are out of range.
    """
    _check(instance, multipliers)
    m, others = multipliers, instance.num_ep_ranks - 1
    demand_GE = instance.weighted_GLE[:, m.layer].astype(object)
    floor_G = group_floors(instance)[:, m.layer].tolist()
    alpha_G, beta_G = (np.array(x, dtype=object) for x in (m.alpha_G, m.beta_G))
    rest_G = m.denominator - m.delta - alpha_G - beta_G
    cost_E = ((others * alpha_G - beta_G) @ demand_GE).tolist()
    own = cost_E.pop(m.expert)
    companions = sorted(cost_E)[: instance.aggregate.experts_per_rank - 1]
    total = own + sum(companions) + int(beta_G @ demand_GE.sum(axis=1))
    total += others * int(rest_G @ floor_G)
    total += others * m.delta * int(aggregate_bound(instance)[m.layer])
    return -(-total // (others * m.denominator))


def recheck(instance: WindowPlacementInstance, bound: Bound) -> int:
    """Return the weighted sum of peaks that the evidence of a bound proves.

    Raises
    ------
    CertificateError
        When the evidence is malformed, or its multipliers are out of range.
    """
    try:
        return value(instance, _read(bound.evidence))
    except (LookupError, TypeError, ValueError) as error:
        raise CertificateError(
            f"the evidence of bound {bound.name!r} does not hold: {error}"
        ) from error


def _check(instance: WindowPlacementInstance, m: Multipliers) -> None:
    num_groups, num_layers, num_experts = instance.demand_GLE.shape
    if not (0 <= m.layer < num_layers and 0 <= m.expert < num_experts):
        raise InstanceError(f"there is no expert {m.expert} in layer {m.layer}")
    if instance.num_ep_ranks == 1:
        raise InstanceError("with one EP rank there are no others")
    if len(m.alpha_G) != num_groups or len(m.beta_G) != num_groups:
        raise InstanceError(
            f"{len(m.alpha_G)} and {len(m.beta_G)} multipliers for {num_groups} groups"
        )
    smallest = min(*m.alpha_G, *m.beta_G, m.delta)
    largest = max(a + b for a, b in zip(m.alpha_G, m.beta_G, strict=True)) + m.delta
    if m.denominator < 1 or smallest < 0 or largest > m.denominator:
        raise InstanceError(
            f"multipliers from {smallest} to {largest} for the denominator"
            f" {m.denominator}"
        )


def _read(evidence: Mapping[str, Any]) -> Multipliers:
    """Read JSON values back; everything must be whole numbers."""
    one = {
        name: _whole(evidence[name])
        for name in ("layer", "expert", "denominator", "delta")
    }
    many = {name: _wholes(evidence[name]) for name in ("alpha_G", "beta_G")}
    return Multipliers(**one, **many)  # type: ignore[arg-type]


def _wholes(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_whole(number) for number in numbers)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise InstanceError(f"{number!r} is not a whole number")
    return number
