"""The dual bound: integer values of items, checked against an exact knapsack.

Axis letters: I items.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import InstanceError
from rpopt.packing.instance import PackingInstance
from rpopt.records import Int64Array, int_array, positive_int
from rpopt.stop import require_time

MAX_TABLE_ENTRIES = 2**27
_MAX_TOTAL_VALUE = 2**62


def dual_weights(
    instance: PackingInstance, value_I: Int64Array, *, deadline_s: float = math.inf
) -> Bound:
    """Return the bound that integer values of the items prove.

    If no feasible cell is worth more than U, at least ceil(sum of values / U) cells are
    needed. Scaled and rounded duals of the Gilmore-Gomory linear program are good
    values; the bound holds for any.

    Parameters
    ----------
    value_I
        Value of each item, int64 [I], at least 0.
    deadline_s
        When to give up with an `OutOfTimeError`, on the clock of `time.monotonic`.
    """
    values = _checked_values(instance, value_I)
    worth = max_cell_value(instance, values, deadline_s=deadline_s)
    evidence = {"value_I": values, "max_cell_value": worth}
    value = -(-sum(values) // max(1, worth))
    return Bound(name="dual_weights", kind="arithmetic", value=value, evidence=evidence)


def recheck_dual_weights(instance: PackingInstance, evidence: Mapping[str, Any]) -> int:
    """Return the number of cells that the evidence of `dual_weights` proves.

    Raises
    ------
    InstanceError
        When the evidence does not fit the instance, or some cell is worth more than
        the evidence says.
    """
    values = _checked_values(instance, evidence["value_I"])
    claimed = positive_int(evidence["max_cell_value"], name="max_cell_value", minimum=0)
    worth = max_cell_value(instance, values)
    if worth > claimed:
        raise InstanceError(
            f"a cell can be worth {worth}; the evidence says at most {claimed}"
        )
    return -(-sum(values) // max(1, claimed))


def max_cell_value(
    instance: PackingInstance, values: list[int], *, deadline_s: float = math.inf
) -> int:
    """Return the largest value of the items in one cell: an exact 0-1 knapsack.

    Dynamic programming over tokens and, where they are limited, samples. Only the value
    is found, so memory does not grow with the number of items. A limit that makes the
    table too large is ignored, which can only make the value larger.

    Raises
    ------
    InstanceError
        When the capacity alone, in units of the weights' common divisor, is too large.
    """
    weights, samples = instance.weight_I.tolist(), instance.samples_I.tolist()
    unit = math.gcd(*weights)
    room = min(instance.capacity, sum(weights)) // unit
    places = _scarce_places(instance)
    if (room + 1) * (places + 1) > MAX_TABLE_ENTRIES:
        places = 0
    if places == 0:
        samples = [0] * len(weights)
    if room >= MAX_TABLE_ENTRIES:
        raise InstanceError(
            f"a capacity of {room} units exceeds the {MAX_TABLE_ENTRIES} entries of"
            " the exact knapsack; use a larger pad_multiple"
        )
    best = np.zeros((places + 1, room + 1), dtype=np.int64)
    spare = np.empty_like(best)
    items = Counter(zip([w // unit for w in weights], samples, values, strict=True))
    for weight, size, value in _bundles(items, room):
        if size > places:
            continue  # a bundle that is no cell
        require_time(deadline_s)
        with_item = spare[size:, weight:]
        np.add(best[: places + 1 - size, :-weight], value, out=with_item)
        np.maximum(best[size:, weight:], with_item, out=best[size:, weight:])
    return int(best[-1, -1])


def _scarce_places(instance: PackingInstance) -> int:
    """Return the sample limit, or 0 if whatever fits by weight keeps it anyway."""
    limit = instance.max_samples_per_cell
    if limit is None:
        return 0
    largest_first = accumulate(sorted(instance.samples_I.tolist(), reverse=True))
    lightest_first = accumulate(sorted(instance.weight_I.tolist()))
    always = sum(samples <= limit for samples in largest_first)
    at_most = sum(weight <= instance.capacity for weight in lightest_first)
    return limit if at_most > always else 0


def _bundles(
    items: Mapping[tuple[int, int, int], int], room: int
) -> Iterator[tuple[int, int, int]]:
    """Yield equal items in bundles that every number of them is a sum of."""
    for (weight, size, value), count in items.items():
        left = min(count, room // weight)
        bundle = 1
        while value and left:
            bundle = min(bundle, left)
            yield bundle * weight, bundle * size, bundle * value
            left, bundle = left - bundle, 2 * bundle


def _checked_values(instance: PackingInstance, value_I: Any) -> list[int]:
    values: list[int] = int_array(value_I, name="value_I", ndim=1, minimum=0).tolist()
    if len(values) != instance.num_items:
        raise InstanceError(
            f"value_I has {len(values)} entries for {instance.num_items} items"
        )
    if sum(values) >= _MAX_TOTAL_VALUE:
        raise InstanceError(f"values sum to {sum(values)}; scale them below 2**62")
    return values
