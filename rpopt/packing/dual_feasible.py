"""Dual feasible functions in exact integers.

A step maps weights and a capacity to new ones such that whatever fitted into a cell
still fits, so that every bound on the new data is a bound on the old. Steps are chained
and named, which makes a chain the evidence of a bound: `[["ccm", 40], ["mt", 3]]`.

Survey: Clautiaux, Alves and Valerio de Carvalho (2010), A survey of dual-feasible and
superadditive functions. Axis letters: M weights.
"""

from collections.abc import Callable, Sequence

import numpy as np

from rpopt.errors import InstanceError
from rpopt.records import Int64Array, positive_int

Weights = tuple[Int64Array, int]
_MAX_TOTAL = 2**56  # a few more steps then stay within int64


def mt(weight_M: Int64Array, capacity: int, alpha: int) -> Weights:
    """Drop weights below alpha; those above capacity - alpha then sit alone.

    Martello and Toth (1990); 0 <= alpha <= ceil(capacity / 2).
    """
    _check_range("mt", alpha, 0, (capacity + 1) // 2)
    kept_M = np.where(weight_M >= alpha, weight_M, 0)
    return np.where(weight_M > capacity - alpha, capacity, kept_M), capacity


def fs1(weight_M: Int64Array, capacity: int, k: int) -> Weights:
    """Round down to multiples of 1/k of the new capacity; multiples of 1/(k + 1) stay.

    Fekete and Schepers (2001), u^(k); k >= 1.
    """
    largest = max(capacity, int(weight_M.sum()))
    _check_range("fs1", k, 1, _MAX_TOTAL // (2 * largest))
    scaled_M = (k + 1) * weight_M
    rounded_M = scaled_M // capacity * capacity
    return np.where(rounded_M == scaled_M, k * weight_M, rounded_M), k * capacity


def ccm(weight_M: Int64Array, capacity: int, k: int) -> Weights:
    """Count how often k fits, into a weight or, for large ones, into what they leave.

    Carlier, Clautiaux and Moukrim (2007), f_1^k; 1 <= k <= capacity / 2.
    """
    _check_range("ccm", k, 1, capacity // 2)
    whole = capacity // k
    small_M = 2 * (weight_M // k)
    large_M = 2 * (whole - (capacity - weight_M) // k)
    middle_M = np.where(2 * weight_M == capacity, whole, small_M)
    return np.where(2 * weight_M > capacity, large_M, middle_M), 2 * whole


STEPS: dict[str, Callable[[Int64Array, int, int], Weights]] = {
    "mt": mt,
    "fs1": fs1,
    "ccm": ccm,
}


def apply(
    chain: Sequence[tuple[str, int]], weight_M: Int64Array, capacity: int
) -> Weights:
    """Return the weights and the capacity after every step of a chain.

    Raises
    ------
    InstanceError
        For an unknown step or a parameter out of its range.
    """
    for name, parameter in chain:
        if name not in STEPS:
            raise InstanceError(f"unknown dual feasible function {name!r}")
        weight_M, capacity = STEPS[name](weight_M, capacity, parameter)
    return weight_M, capacity


def _check_range(name: str, parameter: int, low: int, high: int) -> None:
    value = positive_int(parameter, name=name, minimum=low)
    if value > high:
        raise InstanceError(f"{name} = {value} lies outside [{low}, {high}]")
