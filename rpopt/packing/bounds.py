"""Lower bounds on the number of cells, each recomputed from its evidence in integers.

Tokens and samples per cell are two resources; a bound is the better one of the two.
The evidence of `l1`, `l2` and `dff` names the resource and a chain of dual feasible
functions (see `dual_feasible`): the total after the chain, divided by the capacity and
rounded up, is the bound. Axis letters: I items, M distinct weights.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.packing.dual_feasible import STEPS, apply
from rpopt.packing.instance import PackingInstance
from rpopt.packing.knapsack import recheck_dual_weights
from rpopt.records import Int64Array

Chain = list[list[Any]]
MAX_CHAIN = 4
_MAX_FS1 = 50
_MAX_CCM_WEIGHTS = 256
_MAX_CCM_RATIO = 64


def l1(instance: PackingInstance) -> Bound:
    """Return the volume bound: the total divided by the capacity, rounded up."""
    return _strongest(instance, "l1", lambda weight_I, capacity: iter([[]]))


def l2(instance: PackingInstance) -> Bound:
    """Return the bound L2 of Martello and Toth (1990), over all thresholds."""
    return _strongest(instance, "l2", _l2_chains)


def dff(instance: PackingInstance) -> Bound:
    """Return the best of L2 and of two families of dual feasible functions with it."""
    return _strongest(instance, "dff", _dff_chains)


METHODS: dict[str, Callable[[PackingInstance], Bound]] = {
    "l1": l1,
    "l2": l2,
    "dff": dff,
}
"""Bounds that need nothing but the instance, cheap to dear."""


def recheck(instance: PackingInstance, bound: Bound) -> int:
    """Return the number of cells that the evidence of an arithmetic bound proves.

    Raises
    ------
    CertificateError
        When the method is unknown, or the evidence is malformed or proves nothing.
    """
    if bound.name not in RECHECKS:
        raise CertificateError(
            f"no arithmetic bound of packing is called {bound.name!r}; known are"
            f" {', '.join(RECHECKS)}"
        )
    try:
        return RECHECKS[bound.name](instance, bound.evidence)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(
            f"the evidence of bound {bound.name!r} does not hold: {error}"
        ) from error


def recheck_chain(instance: PackingInstance, evidence: Mapping[str, Any]) -> int:
    """Return the number of cells that the evidence of `l1`, `l2` or `dff` proves.

    Raises
    ------
    InstanceError
        When the evidence names an unknown resource or function, or a parameter out of
        its range.
    """
    chain = evidence["chain"]
    if len(chain) > MAX_CHAIN:
        raise InstanceError(f"a chain of {len(chain)} functions; at most {MAX_CHAIN}")
    resources = _resources(instance)
    if evidence["resource"] not in resources:
        raise InstanceError(
            f"the instance does not limit {evidence['resource']!r} per cell"
        )
    weight_I, capacity = apply(chain, *resources[evidence["resource"]])
    return -(-int(weight_I.sum()) // capacity)


RECHECKS: dict[str, Callable[[PackingInstance, Mapping[str, Any]], int]] = {
    **dict.fromkeys(METHODS, recheck_chain),
    "dual_weights": recheck_dual_weights,
}
"""How each arithmetic bound is recomputed: (instance, evidence) to cells."""


def _resources(instance: PackingInstance) -> dict[str, tuple[Int64Array, int]]:
    """Return the weights and the capacity of each resource that a cell limits."""
    resources = {"tokens": (instance.weight_I, instance.capacity)}
    if instance.max_samples_per_cell is not None:
        resources["samples"] = (instance.samples_I, instance.max_samples_per_cell)
    return resources


def _strongest(
    instance: PackingInstance,
    name: str,
    chains: Callable[[Int64Array, int], Iterator[Chain]],
) -> Bound:
    """Return the bound of the chain that proves most; the first one among equals."""
    best = Bound(name=name, kind="arithmetic", value=0)
    for resource, (weight_I, capacity) in _resources(instance).items():
        for chain in chains(weight_I, capacity):
            evidence = {"resource": resource, "chain": chain}
            value = recheck_chain(instance, evidence)
            if value > best.value:
                best = Bound(
                    name=name, kind="arithmetic", value=value, evidence=evidence
                )
    return best


def _l2_chains(weight_I: Int64Array, capacity: int) -> Iterator[Chain]:
    weight_M, count_M = np.unique(weight_I, return_counts=True)
    _, alpha = _best_threshold(count_M, (weight_M, capacity), (weight_M, capacity))
    yield [["mt", alpha]]


def _dff_chains(weight_I: Int64Array, capacity: int) -> Iterator[Chain]:
    """Yield L2, and the best of each family: its weights in L2, and L2 before it."""
    yield from _l2_chains(weight_I, capacity)
    weight_M, count_M = np.unique(weight_I, return_counts=True)
    before = (weight_M, capacity)
    best: dict[tuple[str, bool], tuple[int, Chain]] = {}
    for name, k in _parameters(weight_M, capacity):
        after = STEPS[name](weight_M, capacity, k)
        for first in (False, True):
            value, alpha = _best_threshold(count_M, before if first else after, after)
            chain: Chain = [[name, k], ["mt", alpha]]
            if value > best.get((name, first), (0, []))[0]:
                best[name, first] = value, chain[::-1] if first else chain
    yield from (chain for _, chain in best.values())


def _parameters(weight_M: Int64Array, capacity: int) -> Iterator[tuple[str, int]]:
    """Yield the functions to try: fs1 for small k, ccm where its values change most."""
    yield from (("fs1", k) for k in range(1, _MAX_FS1 + 1))
    small_M = weight_M[weight_M <= capacity // 2]
    step = max(1, small_M.size // _MAX_CCM_WEIGHTS)
    ratios = {capacity // j + 1 for j in range(3, _MAX_CCM_RATIO)}
    tried = ratios.union(small_M[::step].tolist())
    yield from (("ccm", k) for k in sorted(tried) if k <= capacity // 2)


def _best_threshold(
    count_M: Int64Array, key: tuple[Int64Array, int], value: tuple[Int64Array, int]
) -> tuple[int, int]:
    """Return the cells proved by the best threshold of `mt`, and that threshold.

    Parameters
    ----------
    count_M
        Items of each distinct weight.
    key
        Increasing weights [M] that the threshold is compared with, and their capacity.
    value
        Weights [M] that are summed, and their capacity.
    """
    (key_M, key_capacity), (value_M, capacity) = key, value
    half = (key_capacity + 1) // 2
    alpha_A = np.append(key_M[key_M < half], half)
    items = np.append(0, np.cumsum(count_M))
    total = np.append(0, np.cumsum(count_M * value_M))
    low_A = np.searchsorted(key_M, alpha_A, side="left")
    high_A = np.searchsorted(key_M, key_capacity - alpha_A, side="right")
    proved_A = capacity * (items[-1] - items[high_A]) + total[high_A] - total[low_A]
    best = int(proved_A.argmax())
    return -(-int(proved_A[best]) // capacity), int(alpha_A[best])
