"""The leader bound on J: multipliers in, a bound in exact integers out.

Items stand in an order, most attention first. The leader of a group is its first item:
every other item of the group comes later, so a group led by a long item has that item
in it for certain, and one led by a short item has no longer one. Possible leaders are
split into classes of neighbours; a class may be one item. For any multipliers

    alpha_k in [0, 1/h]  of "the peak of a group led from class k is at least its mean",
                         the rest of "... at least the attention of its leader",
    theta_klq >= 0       with sum over q of theta_klq <= layer weight l,
    room_k >= 0          of "a group holds at most h W tokens" (token cap W, h cells),
    price_i              of "item i is laid out once",

the ticks of a group led from class k, less the prices of its items, are at least

    mu_k = (1 - h alpha_k) a_k - h W room_k - sum of max(0, v_ik),
    v_ik = price_i - alpha_k a_i - (other classes of i) / h
           - sum of theta_klq x_ilq - room_k w_i,

summed over the items that the group may hold; a_k is the least attention of a leader in
class k, and a sole leader counts whatever its sign. As each item leads one group at
most, and the first items need a number of cells of their own, so of leaders
(`forced_leaders`), the cheapest choice of leaders bounds the ticks of all groups. J is
at least their mean over the shards, for both couplings.

One class with alpha = 1/h and room = 0 is the volume bound. Good multipliers are the
duals of a linear program (`rpopt.exact.layout_leaders`), but any will do: nothing here
needs to trust where they come from.

Axis letters: I items, J items in order, K classes, C attention classes, L MoE layers,
P EP ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.layout.instance import LayoutInstance
from rpopt.records import Int64Array, positive_int

NAME = "leaders"
ObjectArray = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderClass:
    """A class of possible leaders and its multipliers.

    Parameters
    ----------
    start
        Place in the order of its first item; it ends where the next class starts.
    alpha, room
        Times the denominator.
    theta
        Triples (layer, EP rank, ticks per token copy).
    """

    start: int
    alpha: int
    room: int
    theta: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """What proves a leader bound.

    Parameters
    ----------
    attention_class
        The class that orders the items.
    denominator
        Of prices, alphas and rooms; a multiple of h.
    price_I
        Prices in ticks, times the denominator.
    classes
        By increasing start; the first starts at 0.
    """

    attention_class: int
    denominator: int
    price_I: tuple[int, ...]
    classes: tuple[LeaderClass, ...]

    def evidence(self) -> dict[str, Any]:
        """Return the multipliers as JSON values."""
        classes = [
            {
                "start": v.start,
                "alpha": v.alpha,
                "room": v.room,
                "theta": [list(t) for t in v.theta],
            }
            for v in self.classes
        ]
        return {
            "attention_class": self.attention_class,
            "denominator": self.denominator,
            "price_I": list(self.price_I),
            "classes": classes,
        }


def leader_order(instance: LayoutInstance, attention_class: int) -> Int64Array:
    """Return the items, most attention first; ties by tokens, then by number."""
    lead_I = instance.attention_ticks_IC[:, attention_class]
    return np.lexsort((-instance.weight_I, -lead_I))


def forced_leaders(instance: LayoutInstance, items: Int64Array) -> int:
    """Return how many groups the first items of an order need at least.

    That many of them are leaders. They need so many cells (`fewest_cells`), and a group
    has h.
    """
    cells = fewest_cells(instance.weight_I[items], instance.token_cap)
    if instance.max_samples_per_cell is not None:
        samples = int(instance.num_samples_I[items].sum())
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


def recheck(instance: LayoutInstance, bound: Bound) -> int:
    """Return the ticks of J that the evidence of a leader bound proves.

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
    order_J = leader_order(instance, multipliers.attention_class)
    start_K = [v.start for v in multipliers.classes]
    end_K = [*start_K[1:], instance.num_items]
    cost_K = [
        _group_cost(instance, multipliers, order_J, leaders, end)
        for leaders, end in zip(multipliers.classes, end_K, strict=True)
    ]
    size_K = [end - start for start, end in zip(start_K, end_K, strict=True)]
    before_K = [forced_leaders(instance, order_J[:start]) for start in start_K]
    most_K = [instance.num_groups - forced for forced in before_K]
    total = sum(multipliers.price_I) + _cheapest(cost_K, size_K, most_K)
    return instance.offset_ticks - (
        -total // (multipliers.denominator * instance.num_shards)
    )


def _group_cost(
    instance: LayoutInstance,
    multipliers: Multipliers,
    order_J: Int64Array,
    leaders: LeaderClass,
    end: int,
) -> int:
    """Return mu of a class times the denominator."""
    h, lead = instance.shard_size, multipliers.attention_class
    items_J = order_J[leaders.start :]
    attention_JC = instance.attention_ticks_IC[items_J].astype(object)
    others_J = attention_JC.sum(axis=1) - attention_JC[:, lead]
    expert_J = np.zeros(items_J.size, dtype=object)
    for layer, rank, ticks in leaders.theta:
        expert_J += instance.load_ILP[items_J, layer, rank].astype(object) * ticks
    price_I = np.array(multipliers.price_I, dtype=object)
    gain_J: ObjectArray = (
        price_I[items_J]
        - attention_JC[:, lead] * leaders.alpha
        - others_J * (multipliers.denominator // h)
        - expert_J * multipliers.denominator
        - instance.weight_I[items_J].astype(object) * leaders.room
    )
    gains: list[int] = gain_J.tolist()
    sole = end == leaders.start + 1
    gain = sum(v for v in gains[sole:] if v > 0) + (gains[0] if sole else 0)
    peak = int(instance.attention_ticks_IC[order_J[end - 1], lead])
    slope = multipliers.denominator - h * leaders.alpha
    return slope * peak - h * instance.token_cap * leaders.room - gain


def _cheapest(
    cost_K: Sequence[int], size_K: Sequence[int], most_K: Sequence[int]
) -> int:
    """Return the least cost of as many leaders as there are groups.

    Class k has `size_K` leaders, and at most `most_K` come from class k and the later
    ones. Such nested limits make a matroid, so the cheapest first is best.
    """
    left_K, missing, total = list(most_K), most_K[0], 0
    for k in sorted(range(len(cost_K)), key=lambda k: cost_K[k]):
        taken = min(size_K[k], missing, *left_K[: k + 1])
        left_K = [left - taken if j <= k else left for j, left in enumerate(left_K)]
        missing -= taken
        total += taken * cost_K[k]
    return total


def _check(instance: LayoutInstance, multipliers: Multipliers) -> None:
    """Raise an `InstanceError` unless the multipliers are ones the bound holds for."""
    classes, weight_L = multipliers.classes, instance.layer_weight_ticks_L.tolist()
    num_ranks, h = instance.load_ILP.shape[2], instance.shard_size
    if not 0 <= multipliers.attention_class < instance.attention_ticks_IC.shape[1]:
        raise InstanceError(f"no attention class {multipliers.attention_class}")
    if multipliers.denominator % h:
        raise InstanceError(
            f"denominator {multipliers.denominator} is no multiple of h = {h}"
        )
    if len(multipliers.price_I) != instance.num_items:
        raise InstanceError(
            f"{len(multipliers.price_I)} prices for {instance.num_items} items"
        )
    starts = [v.start for v in classes]
    if starts[:1] != [0] or starts != sorted(set(starts)):
        raise InstanceError(f"classes start at {starts[:9]}; from 0, rising")
    if starts[-1] >= instance.num_items:
        raise InstanceError(f"a class starts at {starts[-1]}, beyond the last item")
    for leaders in classes:
        spent_L = [0] * len(weight_L)
        for layer, rank, ticks in leaders.theta:
            if not (0 <= layer < len(weight_L) and 0 <= rank < num_ranks) or ticks < 0:
                raise InstanceError(f"theta ({layer}, {rank}, {ticks}) is out of range")
            spent_L[layer] += ticks
        if any(spent > most for spent, most in zip(spent_L, weight_L, strict=True)):
            raise InstanceError("theta exceeds a layer's weight")
        if not 0 <= h * leaders.alpha <= multipliers.denominator or leaders.room < 0:
            raise InstanceError(
                f"alpha {leaders.alpha} or room {leaders.room} is out of range"
            )


def _read(evidence: Mapping[str, Any]) -> Multipliers:
    """Read JSON values back; everything must be whole numbers."""
    return Multipliers(
        attention_class=_whole(evidence["attention_class"]),
        denominator=positive_int(evidence["denominator"], name="denominator"),
        price_I=tuple(_whole(v) for v in evidence["price_I"]),
        classes=tuple(
            LeaderClass(
                start=_whole(v["start"]),
                alpha=_whole(v["alpha"]),
                room=_whole(v["room"]),
                theta=tuple(
                    (_whole(a), _whole(b), _whole(c)) for a, b, c in v["theta"]
                ),
            )
            for v in evidence["classes"]
        ),
    )


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise InstanceError(f"{number!r} is not a whole number")
    return number
