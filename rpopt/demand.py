"""Demand of the kept samples: completed for tokens without a route, and projected.

Tokens without a route and padding are dispatched too. How is a rule (`missing_routes`);
the completed demand of a sample sums to top_k x padded tokens in every layer, except
under the rule "ignore". All of it works on chunks of samples, so that the demand of a
large window is never held twice.

Axis letters: N samples, I items, G groups, L MoE layers, E experts, P EP ranks, X = L x
P or L x E, M slots of an EP rank, n samples of a chunk, m items of a chunk.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.items import Items
from rpopt.plans import Placement
from rpopt.records import Int64Array
from rpopt.rules import PackingRules
from rpopt.window import Window

MAX_SPREAD_COPIES = 2**36
_CHUNK_ENTRIES = 2**18  # int64 pieces that stay in the cache
_RESOLUTION_BITS = 26


def aggregate(window: Window, items: Items, rules: PackingRules) -> Int64Array:
    """Return the completed demand of all kept samples, int64 [L, E]."""
    total_LE = np.zeros((window.num_layers, window.num_experts), dtype=np.int64)
    for _, demand_nLE in completed(window, items, rules):
        total_LE += demand_nLE.sum(axis=0)
    return total_LE


def project(
    window: Window, items: Items, rules: PackingRules, placement: Placement
) -> npt.NDArray[np.int32]:
    """Return the completed demand per EP rank, int32 token copies [I, L, P].

    Raises
    ------
    InstanceError
        When the placement does not fit the window, or a load exceeds 2**31 - 1.
    """
    num_layers, num_experts = window.num_layers, window.num_experts
    if placement.slot_LE.shape != (num_layers, num_experts):
        raise InstanceError(
            f"the placement is for {placement.slot_LE.shape} (layers, experts); the"
            f" window has {(num_layers, num_experts)}"
        )
    ranks = placement.num_ep_ranks
    from_MX = _experts_by_rank(placement)
    load_IX = np.zeros((items.num_items, num_layers * ranks), dtype=np.int64)
    for sample_n, demand_nLE in completed(window, items, rules):
        flat = demand_nLE.reshape(sample_n.size, -1)
        slots = np.take(flat, from_MX.ravel(), axis=1)
        load_nX = slots.reshape(-1, *from_MX.shape).sum(axis=1)
        _add_by_item(load_IX, items.item_of_sample_N[sample_n], load_nX)
    if load_IX.size and load_IX.max() > np.iinfo(np.int32).max:
        raise InstanceError(
            f"one item sends {int(load_IX.max())} token copies to one EP rank in one"
            " layer; at most 2**31 - 1 are supported"
        )
    return load_IX.astype(np.int32).reshape(-1, num_layers, ranks)


def by_group(
    window: Window,
    items: Items,
    rules: PackingRules,
    group_I: Int64Array,
    num_groups: int,
) -> Int64Array:
    """Return the completed demand of each group of items, int64 [G, L, E]."""
    total_GX = np.zeros(
        (num_groups, window.num_layers * window.num_experts), dtype=np.int64
    )
    for sample_n, demand_nLE in completed(window, items, rules):
        group_n = group_I[items.item_of_sample_N[sample_n]]
        _add_by_item(total_GX, group_n, demand_nLE.reshape(sample_n.size, -1))
    return total_GX.reshape(num_groups, window.num_layers, window.num_experts)


def _experts_by_rank(placement: Placement) -> Int64Array:
    """Return layer x E + expert of the m-th slot of each (layer, EP rank), [M, X].

    Slots come first, so that sums over them run along long rows.
    """
    num_layers, num_experts = placement.slot_LE.shape
    flat_LE = placement.expert_of_slot_LE + num_experts * np.arange(num_layers)[:, None]
    per_rank = num_experts // placement.num_ep_ranks
    return np.ascontiguousarray(flat_LE.reshape(-1, per_rank).T)


def _add_by_item(load_IX: Int64Array, item_n: Int64Array, load_nX: Int64Array) -> None:
    """Add each row to its item; samples of a bundle share one."""
    order_n = np.argsort(item_n, kind="stable")
    item_m, first_m = np.unique(item_n[order_n], return_index=True)
    load_IX[item_m] += np.add.reduceat(load_nX[order_n], first_m, axis=0)


def completed(
    window: Window, items: Items, rules: PackingRules
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield (sample ids [n], completed demand int64 [n, L, E]) of the kept samples."""
    demand_NLE, routed_N = window.demand_NLE, window.routed_tokens_N
    if demand_NLE is None or routed_N is None:
        return
    stand_in = _StandIn(window)
    kept_N = items.kept_samples
    step = max(1, _CHUNK_ENTRIES // (window.num_layers * window.num_experts))
    for start in range(0, kept_N.size, step):
        sample_n = kept_N[start : start + step]
        demand_nLE = demand_NLE[sample_n].astype(np.int64)
        if rules.missing_routes != "ignore":
            padded_n = -(-window.length_N[sample_n] // rules.pad_multiple)
            missing_n = padded_n * rules.pad_multiple - routed_N[sample_n]
            if rules.missing_routes == "uniform":
                base_nLE = np.ones_like(demand_nLE)
            else:
                base_nLE = stand_in.fill(sample_n, demand_nLE)
            rows = np.flatnonzero(missing_n)
            if rows.size:
                copies_n = missing_n[rows] * window.top_k
                _check_copies(sample_n[rows], copies_n)
                demand_nLE[rows] += spread(copies_n, base_nLE[rows])
        yield sample_n, demand_nLE


def _check_copies(sample_n: Int64Array, copies_n: Int64Array) -> None:
    if copies_n.max() >= MAX_SPREAD_COPIES:
        worst = int(copies_n.argmax())
        raise InstanceError(
            f"sample {sample_n[worst]} sends {copies_n[worst]} token copies without a"
            f" route; fewer than {MAX_SPREAD_COPIES} are supported: lower pad_multiple,"
            " or choose missing_routes = 'ignore'"
        )


def spread(copies_n: Int64Array, base_nLE: Int64Array) -> Int64Array:
    """Spread whole token copies in proportion to histograms, exactly.

    Parameters
    ----------
    copies_n
        Copies to spread in every layer, int64 [n], below `MAX_SPREAD_COPIES`.
    base_nLE
        Histograms with a positive sum in every layer, int64 [n, L, E].

    Returns
    -------
    Int64Array
        Copies per expert [n, L, E]; every layer sums to `copies_n`. Cumulative sums
        are rounded down, so each entry is within one copy of its exact share.
    """
    total_nL1 = base_nLE.sum(axis=2, keepdims=True)
    bits = np.frexp(total_nL1.astype(np.float64))[1].astype(np.int64)
    base_nLE = base_nLE >> np.maximum(0, bits - _RESOLUTION_BITS)
    cumulative = np.cumsum(base_nLE, axis=2)
    edges = cumulative * copies_n[:, None, None] // cumulative[:, :, -1:]
    return np.diff(edges, axis=2, prepend=0)


class _StandIn:
    """Histograms for samples without a route: their prompt group's, else all's."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._cache: dict[int, Int64Array] = {}

    def fill(self, sample_n: Int64Array, demand_nLE: Int64Array) -> Int64Array:
        routed_N = self._window.routed_tokens_N
        assert routed_N is not None
        without = np.flatnonzero(routed_N[sample_n] == 0)
        if without.size == 0:
            return demand_nLE
        base_nLE = demand_nLE.copy()
        for j in without:
            base_nLE[j] = self._histogram(int(sample_n[j]))
        return base_nLE

    def _histogram(self, sample: int) -> Int64Array:
        group_N = self._window.prompt_group_N
        group = -1 if group_N is None else int(group_N[sample])
        if group >= 0:
            assert group_N is not None
            histogram_LE = self._sum(group, group_N == group)
            if histogram_LE.any():
                return histogram_LE
        everyone = np.ones(self._window.num_samples, dtype=bool)
        histogram_LE = self._sum(-1, everyone)
        return histogram_LE if histogram_LE.any() else np.ones_like(histogram_LE)

    def _sum(self, key: int, members_N: npt.NDArray[np.bool_]) -> Int64Array:
        if key not in self._cache:
            demand_NLE = self._window.demand_NLE
            assert demand_NLE is not None
            total_LE = np.zeros(demand_NLE.shape[1:], dtype=np.int64)
            for i in np.flatnonzero(members_N):
                total_LE += demand_NLE[i]
            self._cache[key] = total_LE
        return self._cache[key]
