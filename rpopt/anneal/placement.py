"""Annealing of placements for the groups that meet, layer by layer.

The same integers and counter-based randomness as for layouts: the result depends on the
arguments alone, and a layer's on that layer alone. Each layer is one chain of swaps
(`rpopt.anneal.placement_kernel`) that cools and then descends; work is limited by
counts.

Axis letters: G groups, L MoE layers, E experts, P EP ranks, T temperatures.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rpopt.anneal.fixed import LOG2_BITS, MAX_TEMPERATURE, neglog_table, shrink
from rpopt.checks import require_feasible
from rpopt.counter import key
from rpopt.errors import InstanceError
from rpopt.placement.bounds_window import window_bounds
from rpopt.placement.heuristics import place
from rpopt.placement.instance_window import (
    WindowPlacementInstance,
    check_window,
    evaluate_window,
)
from rpopt.placement.search import relabel
from rpopt.plans import Placement
from rpopt.records import Int64Array, positive_int

DEFAULT_EFFORT = 500
_STREAM = 0x77696E646F77  # "window"
_NUM_TEMPERATURES = 32
_HOT, _COLD = 8, 128  # the typical change of a swap is divided by these
_NUM_SAMPLED = 256
_ROUNDS = 20
_NUM_PRICES = 6  # of a move, tried when few experts shall move
_FIRST_PRICE = 8  # one part in so many of all that moves can save


def place_window(
    instance: WindowPlacementInstance,
    *,
    starts: Sequence[Placement] = (),
    seed: int = 0,
    effort: int = DEFAULT_EFFORT,
    threads: int | None = None,
) -> Placement:
    """Return a placement with a small weighted sum of the groups' peaks.

    In every layer it is at most that of each start; the aggregate placement is one of
    them when none is given. Experts that stay on their rank keep their slot in the
    first start.

    Parameters
    ----------
    starts
        Placements to start from: every layer takes its best.
    seed
        Any whole number.
    effort
        Attempted swaps per expert.
    threads
        Layers annealed at once; None for one per available core.

    Raises
    ------
    InfeasibleError
        When a start does not fit the instance.
    """
    effort = positive_int(effort, name="effort", minimum=0)
    if not starts:
        starts = [place(instance.aggregate, seed=seed)]
    for number, start in enumerate(starts):
        require_feasible(check_window(instance, start), f"start {number}")
    best = best_layers(instance, starts)
    rank_LE, total_L = best.rank_LE, evaluate_window(instance, best).total_L
    bound_L = np.array([bound.value for bound in window_bounds(instance)])
    layers = np.flatnonzero(total_L > bound_L).tolist()
    if instance.aggregate.experts_per_rank > 1 and instance.num_ep_ranks > 1:
        search = _Search(instance, seed, effort)

        def improve(layer: int) -> None:
            rank_LE[layer] = search.improve(layer, rank_LE[layer])

        _each(improve, layers, threads)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks, starts[0])


def best_layers(
    instance: WindowPlacementInstance, placements: Sequence[Placement]
) -> Placement:
    """Take each layer from the placement that is best there, the first of equals."""
    total_AL = np.array([evaluate_window(instance, p).total_L for p in placements])
    slot_ALE = np.array([p.slot_LE for p in placements])
    best_L = total_AL.argmin(axis=0)
    return Placement(
        slot_LE=slot_ALE[best_L, np.arange(best_L.size)],
        num_ep_ranks=instance.num_ep_ranks,
    )


class _Search:
    """What the layers of one instance share."""

    def __init__(
        self, instance: WindowPlacementInstance, seed: int, effort: int
    ) -> None:
        from rpopt.anneal import placement_kernel  # numba loads slowly

        self._kernel = placement_kernel
        self._ranks = instance.num_ep_ranks
        self._demand_LEG = np.ascontiguousarray(
            instance.weighted_GLE.transpose(1, 2, 0)
        )
        attempts = effort * self._demand_LEG.shape[1]
        self._attempts = -(-attempts // _NUM_TEMPERATURES)
        self._key = np.uint64(key(seed, _STREAM))

    def improve(
        self,
        layer: int,
        rank_E: Int64Array,
        home_E: Int64Array | None = None,
        price: int = 0,
    ) -> Int64Array:
        """Anneal one layer from a start; away from home an expert costs `price`."""
        state = self._state(layer, rank_E, home_E, price)
        change = int(self._kernel.typical_change(state, self._key, _NUM_SAMPLED))
        self._kernel.anneal(
            state,
            _temperatures(change),
            self._attempts,
            neglog_table(),
            self._key,
            _ROUNDS,
        )
        found_E = np.empty_like(rank_E)
        found_E[state.place_E] = np.arange(rank_E.size) // (rank_E.size // self._ranks)
        return found_E

    def approach(
        self, layer: int, rank_E: Int64Array, home_E: Int64Array, *, limit: int
    ) -> Int64Array:
        """Return a layer with few experts away from home, its total within the limit.

        `rank_E` is within it, home is not. Without a price all that helps is moved; at
        the price of everything that moves can save, nothing is.
        """
        found = [rank_E]
        low, high = 0, self._total(layer, home_E) - self._total(layer, rank_E)
        for _ in range(_NUM_PRICES):
            price = math.isqrt(low * high) if low else high // _FIRST_PRICE
            if price <= low:
                break
            near_E = self.improve(layer, home_E, home_E, price)
            if self._total(layer, near_E) <= limit:
                found.append(near_E)
                low = price
            else:
                high = price
        for near_E in found:
            _go_home(self._demand_LEG[layer], near_E, home_E, limit)
        return min(found, key=lambda x: ((x != home_E).sum(), self._total(layer, x)))

    def _total(self, layer: int, rank_E: Int64Array) -> int:
        return int(_loads(self._demand_LEG[layer], rank_E).max(axis=0).sum())

    def _state(
        self, layer: int, rank_E: Int64Array, home_E: Int64Array | None, price: int
    ) -> Any:
        demand_EG = self._demand_LEG[layer]
        num_groups = demand_EG.shape[1]
        if home_E is None:
            home_E = np.full(rank_E.size, -1, dtype=np.int64)
        return self._kernel.State(
            demand_EG=demand_EG,
            place_E=np.argsort(rank_E, kind="stable"),
            load_PG=np.empty((self._ranks, num_groups), dtype=np.int64),
            top_3G=np.empty((3, num_groups), dtype=np.int64),
            home_E=home_E,
            price=np.int64(price),
        )


def _temperatures(change: int) -> Int64Array:
    """Return temperatures that fall evenly in the logarithm, in demand units."""
    hot = min(MAX_TEMPERATURE, max(1, change // _HOT))
    log2_span = (_COLD // _HOT).bit_length() - 1
    step = (log2_span << LOG2_BITS) // (_NUM_TEMPERATURES - 1)
    return np.array([shrink(hot, t * step) for t in range(_NUM_TEMPERATURES)])


def _each(
    improve: Callable[[int], None], layers: Sequence[int], threads: int | None
) -> None:
    cores = len(os.sched_getaffinity(0))
    threads = cores if threads is None else positive_int(threads, name="threads")
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(improve, layers))


def place_near(
    instance: WindowPlacementInstance,
    best: Placement,
    current: Placement,
    *,
    tolerance: float,
    seed: int = 0,
    threads: int | None = None,
) -> Placement:
    """Return a placement near the best that moves few experts.

    EP ranks are relabelled by assignment. Then layers are annealed from home with a
    price on every expert that is away, the price found by bisection so that the sum of
    peaks stays within the tolerance; last, experts go home by swaps as long as it does.
    A layer in which the current placement is itself within it does not move.

    Parameters
    ----------
    best
        A placement with small sums of peaks.
    current
        The placement now in force.
    tolerance
        Share by which the sum of peaks of a layer may exceed that of `best`, at least
        0.
    seed
        Any whole number.
    threads
        Layers annealed at once; None for one per available core.

    Raises
    ------
    InstanceError
        For a negative tolerance.
    InfeasibleError
        When a placement does not fit the instance.
    """
    if not 0 <= tolerance < float("inf"):
        raise InstanceError(f"tolerance = {tolerance}; it must be at least 0")
    for name, placement in (("best", best), ("current", current)):
        require_feasible(check_window(instance, placement), f"the {name} placement")
    total_L = evaluate_window(instance, best).total_L
    limit_L = total_L + (total_L * tolerance).astype(np.int64)
    now_L = evaluate_window(instance, current).total_L
    home_LE, rank_LE = current.rank_LE, relabel(best, current).rank_LE
    stays_L = now_L <= limit_L
    rank_LE[stays_L] = home_LE[stays_L]
    search = _Search(instance, seed, DEFAULT_EFFORT)

    def approach(layer: int) -> None:
        rank_LE[layer] = search.approach(
            layer, rank_LE[layer], home_LE[layer], limit=int(limit_L[layer])
        )

    _each(approach, np.flatnonzero(~stays_L).tolist(), threads)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks, current)


def _go_home(
    demand_EG: Int64Array, rank_E: Int64Array, home_E: Int64Array, limit: int
) -> None:
    """Swap an expert home, in place, where that costs least, within the limit."""
    load_PG = _loads(demand_EG, rank_E)
    while True:
        options = []
        for a in np.flatnonzero(rank_E != home_E).tolist():
            p, q = int(rank_E[a]), int(home_E[a])
            for b in np.flatnonzero((rank_E == q) & (home_E != q)).tolist():
                moved_G = demand_EG[b] - demand_EG[a]
                rest_G = np.delete(load_PG, (p, q), axis=0).max(axis=0, initial=0)
                pair_G = np.maximum(load_PG[p] + moved_G, load_PG[q] - moved_G)
                total = int(np.maximum(rest_G, pair_G).sum())
                if total <= limit:
                    options.append((home_E[b] != p, total, a, b))
        if not options:
            return
        _, _, a, b = min(options)  # both home first
        p, q = rank_E[a], rank_E[b]
        load_PG[p] += demand_EG[b] - demand_EG[a]
        load_PG[q] += demand_EG[a] - demand_EG[b]
        rank_E[a], rank_E[b] = q, p


def _loads(demand_EG: Int64Array, rank_E: Int64Array) -> Int64Array:
    """Return what each rank receives in each group, [P, G]."""
    load_PG = np.zeros((int(rank_E.max()) + 1, demand_EG.shape[1]), dtype=np.int64)
    np.add.at(load_PG, rank_E, demand_EG)
    return load_PG
