"""The cost model, and its one rounding to integers.

A sample of l tokens costs c1 l + c2 l**2 in each attention class (one class per kind of
attention layer); a token copy costs the same on every EP rank. Costs are normalised by
the window's totals, so only the shares of attention and experts matter. They are
rounded once: attention to integer ticks per item, demand stays in tokens with one
integer weight per layer. Every evaluator, bound and engine uses the rounded data.

Axis letters: I items, C attention classes, L MoE layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from rpopt.errors import InstanceError
from rpopt.items import DROPPED, Items
from rpopt.records import Int64Array, Record, freeze, int_array
from rpopt.topology import Topology
from rpopt.window import Window

MAX_UNIT_TICKS = 2**44
_MAX_TOTAL_TICKS = 2**62
CostUnit = Literal["proxy", "flop", "s"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionClass(Record):
    """Cost of one kind of attention layer: c1 l + c2 l**2 for a sample of l tokens."""

    SCHEMA: ClassVar[str] = "rpopt.attention-class/1"

    name: str = "attention"
    c1: Fraction = Fraction(1)
    c2: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        """Make both coefficients exact fractions."""
        for name in ("c1", "c2"):
            freeze(self, name, _fraction(getattr(self, name), name))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel(Record):
    """What attention and experts cost, in one common unit.

    Parameters
    ----------
    attention
        The attention classes; ranks wait for each other once per class.
    expert_per_copy
        Cost of one token copy in one MoE layer, in the unit of the attention classes.
        Needed when `omega` is None.
    omega
        Attention share in [0, 1] of a perfectly balanced step. None: it follows from
        the window, the topology and the costs above. A window with lengths only
        always has the share 1.
    layer_weight_L
        Relative expert cost of the layers; None for equal weights.
    unit
        "proxy", "flop" or "s" (calibrated).
    name
        The preset or fit this model came from.

    Raises
    ------
    InstanceError
        For negative or non-finite costs, or an omega outside [0, 1].
    """

    SCHEMA: ClassVar[str] = "rpopt.cost/1"

    attention: tuple[AttentionClass, ...] = field(
        default_factory=lambda: (AttentionClass(),)
    )
    expert_per_copy: Fraction = Fraction(0)
    omega: Fraction | None = None
    layer_weight_L: tuple[Fraction, ...] | None = None
    unit: CostUnit = "proxy"
    name: str = "custom"

    def __post_init__(self) -> None:
        """Make every number an exact fraction and check its range."""
        if self.unit not in get_args(CostUnit):
            raise InstanceError(
                f"unit = {self.unit!r}; use one of {get_args(CostUnit)}"
            )
        freeze(self, "attention", tuple(self.attention))
        if not self.attention:
            raise InstanceError("a cost model needs at least one attention class")
        copy = _fraction(self.expert_per_copy, "expert_per_copy")
        freeze(self, "expert_per_copy", copy)
        if self.omega is None and copy == 0:
            raise InstanceError(
                "the cost model has neither omega nor expert_per_copy; give one, so"
                " that attention and experts can be weighed"
            )
        if self.omega is not None:
            omega = _fraction(self.omega, "omega")
            if omega > 1:
                raise InstanceError(f"omega = {self.omega} lies outside [0, 1]")
            freeze(self, "omega", omega)
        if self.layer_weight_L is not None:
            weights = tuple(
                _fraction(w, f"layer_weight_L[{i}]")
                for i, w in enumerate(self.layer_weight_L)
            )
            if sum(weights) == 0:
                raise InstanceError("layer_weight_L sums to 0; no layer would count")
            freeze(self, "layer_weight_L", weights)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScaledCosts(Record):
    """The rounded costs: what one tick is worth and what everything costs in ticks.

    Parameters
    ----------
    attention_ticks_IC
        Attention cost of each item in each class; 0 for dummies.
    layer_weight_ticks_L
        Ticks per token copy at the peak EP rank, for each layer.
    offset_ticks
        Constant of perfect balance for classes and layers without any load.
    unit_ticks
        Ticks of J = 1.
    omega
        The attention share that was used.
    """

    SCHEMA: ClassVar[str] = "rpopt.scaled-costs/1"

    attention_ticks_IC: Int64Array
    layer_weight_ticks_L: Int64Array
    offset_ticks: int
    unit_ticks: int
    omega: Fraction

    def __post_init__(self) -> None:
        """Store arrays read-only."""
        for name, ndim in (("attention_ticks_IC", 2), ("layer_weight_ticks_L", 1)):
            array = int_array(getattr(self, name), name=name, ndim=ndim, minimum=0)
            freeze(self, name, array)


def scale_costs(
    cost: CostModel,
    window: Window,
    items: Items,
    topology: Topology,
    copies_L: Int64Array,
) -> ScaledCosts:
    """Round the costs of a window to integer ticks.

    Parameters
    ----------
    copies_L
        Completed token copies of all kept samples per layer, int64 [L].

    Raises
    ------
    InstanceError
        When the layer weights do not fit the window.
    """
    cost_CI = [item_costs(c, window, items) for c in cost.attention]
    totals_C = [sum(costs, Fraction(0)) for costs in cost_CI]
    attention_C, layer_L = _shares(cost, topology, totals_C, copies_L)
    unit = _unit_ticks(topology)
    attention = np.zeros((items.num_items, len(cost_CI)), dtype=np.int64)
    offset = Fraction(0)
    for c, (costs, total) in enumerate(zip(cost_CI, totals_C, strict=True)):
        if total == 0:
            offset += attention_C[c] * unit
            continue
        scale = unit * attention_C[c] * topology.dp / total
        attention[: len(costs), c] = [_round(scale * value) for value in costs]
    weights = []
    for share, copies in zip(layer_L, copies_L.tolist(), strict=True):
        if copies == 0:
            offset += share * unit
        peers = topology.num_shards * topology.ep
        weights.append(_round(unit * share * peers / copies) if copies else 0)
    return ScaledCosts(
        attention_ticks_IC=attention,
        layer_weight_ticks_L=np.array(weights, dtype=np.int64),
        offset_ticks=_round(offset),
        unit_ticks=unit,
        omega=sum(attention_C, Fraction(0)),
    )


def item_costs(
    attention: AttentionClass, window: Window, items: Items
) -> list[Fraction]:
    """Return the exact attention cost of every item in one class; 0 for dummies."""
    costs = [Fraction(0)] * items.num_items
    item_N = items.item_of_sample_N.tolist()
    for item, length in zip(item_N, window.length_N.tolist(), strict=True):
        if item != DROPPED:
            costs[item] += attention.c1 * length + attention.c2 * length**2
    return costs


def _shares(
    cost: CostModel,
    topology: Topology,
    totals_C: Sequence[Fraction],
    copies_L: Int64Array,
) -> tuple[list[Fraction], list[Fraction]]:
    """Return the share of each class and layer in a perfectly balanced step."""
    num_layers = int(copies_L.size)
    weights = cost.layer_weight_L
    if weights is None or num_layers == 0:
        weights = (Fraction(1),) * num_layers
    elif len(weights) != num_layers:
        raise InstanceError(
            f"layer_weight_L has {len(weights)} entries; the window has {num_layers}"
            " MoE layers"
        )
    dense = Fraction(topology.dp * topology.tp * topology.cp)
    attention_C = [total / dense for total in totals_C]
    omega = Fraction(1) if num_layers == 0 else cost.omega
    if omega is None:
        slices = topology.num_slices * topology.etp
        peers = topology.num_shards * topology.ep * slices
        expert = cost.expert_per_copy * int(copies_L.sum()) / peers
        whole = sum(attention_C) + expert
        omega = Fraction(sum(attention_C)) / whole if whole else Fraction(1)
    attention = sum(attention_C)
    equal = Fraction(1, len(attention_C))
    shares_C = [omega * (a / attention if attention else equal) for a in attention_C]
    total_weight = sum(weights)
    return shares_C, [(1 - omega) * w / total_weight for w in weights]


def _unit_ticks(topology: Topology) -> int:
    """Return the largest power of two for which no sum of costs can overflow."""
    unit, peers = MAX_UNIT_TICKS, topology.dp + topology.num_shards * topology.ep
    while unit * 2 * peers >= _MAX_TOTAL_TICKS:
        unit //= 2
    return unit


def _round(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))


def _fraction(value: Any, name: str) -> Fraction:
    if isinstance(value, np.generic):
        value = value.item()  # a NumPy integer inside a Fraction would overflow
    try:
        exact = Fraction(value)
    except (ValueError, OverflowError, TypeError, ZeroDivisionError) as error:
        raise InstanceError(f"{name} = {value!r} is not a finite number") from error
    if exact < 0:
        raise InstanceError(f"{name} = {value} is negative; costs must be >= 0")
    return exact
