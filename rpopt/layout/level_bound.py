"""The level bound on J: multipliers in, a bound in exact integers out.

Every group belongs to the level of its peak: the largest attention over its cells, in
one class. Longest items force some groups into high levels; a group up there wastes
what its other cells cannot hold, and its experts see few, long items. Let m be the peak
of group g at level k, c the class, h the cells of a group. For any multipliers

    alpha_k >= 0        of "no cell of the group has more attention than m",
    theta_klq >= 0      with sum over q of theta_klq <= layer weight l,
    price_i             of "item i is laid out once",

the ticks of the group, less the prices of its items, are at least

    (1 - h alpha_k) m - h sigma_k,    sigma_k = max over cells of the sum of v_ik,
    v_ik = price_i - alpha_k a_ic - (other classes of i) / h - sum of theta_klq x_ilq,

where cells are nonempty, keep the token cap and hold no item that alone exceeds the
level. Summing over the groups, with the cheapest numbers of groups per level that
`forced_groups` allows, bounds the ticks of all groups, and J is at least their mean
over the shards, for both couplings. One level with alpha = 1 / h is the volume bound.

Good multipliers are the duals of a linear program (`rpopt.exact.layout_levels`), but
any will do: nothing here needs to trust where they come from.

Axis letters: I items, K levels, L MoE layers, P EP ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.layout.instance import LayoutInstance
from rpopt.records import BoolArray, Int64Array, positive_int

NAMES = ("levels_attention", "levels", "levels_patterns")
"""Bounds that `recheck` understands; they differ in where the multipliers come from."""
LONGEST_TABLE = 2**16
"""Entries of the knapsack; larger caps are divided and item weights rounded down."""
ObjectArray = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level and its multipliers.

    Parameters
    ----------
    above
        Peaks of this level are larger (ticks); they end where the next level begins.
    alpha
        alpha_k times the denominator.
    theta
        Triples (layer, EP rank, ticks per token copy).
    """

    above: int
    alpha: int
    theta: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """What proves a level bound.

    Parameters
    ----------
    attention_class
        The class whose peaks define the levels.
    denominator
        Of prices and alphas; a multiple of h.
    price_I
        Prices in ticks, times the denominator.
    levels
        By increasing peak; the first starts below 0.
    """

    attention_class: int
    denominator: int
    price_I: tuple[int, ...]
    levels: tuple[Level, ...]

    def evidence(self) -> dict[str, Any]:
        """Return the multipliers as JSON values."""
        levels = [
            {"above": v.above, "alpha": v.alpha, "theta": [list(t) for t in v.theta]}
            for v in self.levels
        ]
        return {
            "attention_class": self.attention_class,
            "denominator": self.denominator,
            "price_I": list(self.price_I),
            "levels": levels,
        }


def recheck(instance: LayoutInstance, bound: Bound) -> int:
    """Return the ticks of J that the evidence of a level bound proves.

    Raises
    ------
    CertificateError
        When the evidence is malformed, or its multipliers are out of range.
    """
    try:
        return value(instance, _read(bound.evidence))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(
            f"the evidence of bound {bound.name!r} does not hold: {error}"
        ) from error


def value(instance: LayoutInstance, multipliers: Multipliers) -> int:
    """Return the ticks of J that multipliers prove, exact.

    Raises
    ------
    InstanceError
        When the multipliers do not fit the instance or are out of range.
    """
    _check(instance, multipliers)
    above = [v.above for v in multipliers.levels]
    cost_K = [
        _group_cost(instance, multipliers, level, peak)
        for level, peak in zip(multipliers.levels, [*above[1:], None], strict=True)
    ]
    forced_K = [forced_groups(instance, multipliers.attention_class, t) for t in above]
    total = sum(multipliers.price_I) + _cheapest(cost_K, forced_K)
    return instance.offset_ticks - (
        -total // (multipliers.denominator * instance.num_shards)
    )


def item_costs(
    instance: LayoutInstance, multipliers: Multipliers, level: Level
) -> ObjectArray:
    """Return price_i - v_ik of every item, times the denominator: Python ints [I]."""
    attention_IC = instance.attention_ticks_IC.astype(object)
    lead_I = attention_IC[:, multipliers.attention_class]
    others_I = attention_IC.sum(axis=1) - lead_I
    expert_I = np.zeros(instance.num_items, dtype=object)
    for layer, rank, ticks in level.theta:
        expert_I += instance.load_ILP[:, layer, rank].astype(object) * ticks
    unit = multipliers.denominator // instance.shard_size
    cost_I: ObjectArray = (
        lead_I * level.alpha + others_I * unit + expert_I * multipliers.denominator
    )
    return cost_I


def _group_cost(
    instance: LayoutInstance,
    multipliers: Multipliers,
    level: Level,
    highest: int | None,
) -> int:
    """Return a lower bound on ticks less prices of a group, times the denominator."""
    lead_I = instance.attention_ticks_IC[:, multipliers.attention_class]
    allowed_I = np.full(lead_I.size, True) if highest is None else lead_I <= highest
    price_I = np.array(multipliers.price_I, dtype=object)
    value_I = price_I - item_costs(instance, multipliers, level)
    slope = multipliers.denominator - instance.shard_size * level.alpha
    peak = level.above + 1
    if slope < 0:
        if highest is None:
            raise InstanceError(
                "the last level has no highest peak; alpha is too large"
            )
        peak = highest
    return slope * peak - instance.shard_size * richest_cell(
        instance, value_I, allowed_I
    )


def richest_cell(
    instance: LayoutInstance, value_I: ObjectArray, allowed_I: BoolArray
) -> int:
    """Return at least the largest value of the items in one nonempty cell.

    A knapsack over tokens by dynamic programming; numbers are rounded, where they must
    be, so that the result can only grow. Limited samples are counted as if each item
    were one and tokens did not matter, and the smaller of both results holds.
    """
    values: list[int] = value_I[allowed_I].tolist()
    gains = sorted((v for v in values if v > 0), reverse=True)
    if not gains:
        return max(values, default=0)
    shift = max(0, sum(gains).bit_length() - 61)
    grain = -(-instance.token_cap // LONGEST_TABLE)
    best = np.zeros(instance.token_cap // grain + 1, dtype=np.int64)
    for gain, weight in zip(
        values, (instance.weight_I[allowed_I] // grain).tolist(), strict=True
    ):
        if gain > 0:
            rounded = -(-gain >> shift)
            with_item = best[: best.size - weight] + rounded
            np.maximum(best[weight:], with_item, out=best[weight:])
    limit = instance.max_samples_per_cell
    return min(int(best[-1]) << shift, sum(gains[:limit]))


def _cheapest(cost_K: Sequence[int], forced_K: Sequence[int]) -> int:
    """Return the least cost of as many groups as each level, or above, must hold."""
    total, placed, best = 0, 0, None
    for cost, forced in zip(reversed(cost_K), reversed(forced_K), strict=True):
        best = cost if best is None else min(best, cost)
        total += best * max(0, forced - placed)
        placed = max(placed, forced)
    return total


def forced_groups(instance: LayoutInstance, attention_class: int, above: int) -> int:
    """Return how many groups must have a peak above some ticks.

    Items with more attention than that sit in cells with more attention; how many such
    cells there are at least is a packing bound (`fewest_cells`), and a group has h.
    """
    if above < 0:
        return instance.num_groups
    long_I = instance.attention_ticks_IC[:, attention_class] > above
    cells = fewest_cells(instance.weight_I[long_I], instance.token_cap)
    if instance.max_samples_per_cell is not None:
        samples = int(instance.num_samples_I[long_I].sum())
        cells = max(cells, -(-samples // instance.max_samples_per_cell))
    return min(instance.num_groups, -(-cells // instance.shard_size))


def fewest_cells(weight_I: Int64Array, cap: int) -> int:
    """Return the bound L2 of Martello and Toth (1990) on the cells that items need."""
    weight_I = np.sort(weight_I)
    total = np.concatenate(([0], np.cumsum(weight_I)))
    half = int(np.searchsorted(weight_I, cap // 2, side="right"))
    large = weight_I.size - half
    # Per threshold: large items with room for it, and what that room cannot hold.
    end_A = np.searchsorted(weight_I, cap - weight_I[:half], side="right")
    room_A = (end_A - half) * cap - (total[end_A] - total[half])
    excess_A = total[half] - total[:half] - room_A
    extra = -(-int(excess_A.max(initial=0)) // cap)
    return max(large + extra, -(-int(total[-1]) // cap))


def _check(instance: LayoutInstance, multipliers: Multipliers) -> None:
    """Raise an `InstanceError` unless the multipliers are ones the bound holds for."""
    levels, weight_L = multipliers.levels, instance.layer_weight_ticks_L
    num_ranks = instance.load_ILP.shape[2]
    if not 0 <= multipliers.attention_class < instance.attention_ticks_IC.shape[1]:
        raise InstanceError(f"no attention class {multipliers.attention_class}")
    if multipliers.denominator < 1 or multipliers.denominator % instance.shard_size:
        raise InstanceError(
            f"denominator {multipliers.denominator} is no multiple of h ="
            f" {instance.shard_size}"
        )
    if len(multipliers.price_I) != instance.num_items:
        raise InstanceError(
            f"{len(multipliers.price_I)} prices for {instance.num_items} items"
        )
    above = [v.above for v in levels]
    if not above or above[0] >= 0 or above != sorted(set(above)):
        raise InstanceError(f"levels start above {above[:9]}; from below 0, rising")
    for level in levels:
        spent_L = [0] * weight_L.size
        for layer, rank, ticks in level.theta:
            if not (0 <= layer < weight_L.size and 0 <= rank < num_ranks) or ticks < 0:
                raise InstanceError(f"theta ({layer}, {rank}, {ticks}) is out of range")
            spent_L[layer] += ticks
        if level.alpha < 0 or any(
            spent > weight
            for spent, weight in zip(spent_L, weight_L.tolist(), strict=True)
        ):
            raise InstanceError("alpha is negative or theta exceeds a layer's weight")


def _read(evidence: Mapping[str, Any]) -> Multipliers:
    """Read JSON values back; everything must be whole numbers."""
    return Multipliers(
        attention_class=_whole(evidence["attention_class"]),
        denominator=positive_int(evidence["denominator"], name="denominator"),
        price_I=tuple(_whole(v) for v in evidence["price_I"]),
        levels=tuple(
            Level(
                above=_whole(v["above"]),
                alpha=_whole(v["alpha"]),
                theta=tuple(
                    (_whole(a), _whole(b), _whole(c)) for a, b, c in v["theta"]
                ),
            )
            for v in evidence["levels"]
        ),
    )


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise InstanceError(f"{number!r} is not a whole number")
    return number
