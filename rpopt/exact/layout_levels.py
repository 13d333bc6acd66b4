"""Level bounds on J: multipliers from linear programs, then a search over levels.

Four steps, each stronger than the one before. Any multipliers prove a bound
(`rpopt.layout.level_bound`), so each step may end early:

1. *levels_attention*: the program of `layout_master` with compact fills, without expert
   peaks: the attention that forced groups waste, plus the expert volume.
2. *levels*: with expert peaks per level: groups that waste attention hold few, long
   items, whose demand is skewed.
3. *levels_patterns*: forced levels filled with patterns, by column generation; the
   pricing problem is a knapsack over tokens.
4. *levels_search*: HiGHS, with whole items in the forced levels. It is the claim of a
   solver; the others are recomputed in exact integers.

Axis letters: I items, K levels, L MoE layers, P EP ranks, F fills.
"""

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from rpopt.certificate import Bound
from rpopt.exact.layout_master import Fills, Master
from rpopt.highs import LpHandle, LpResult, Termination, solve
from rpopt.highs.linear import FloatArray
from rpopt.layout.bounds import volume
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.level_bound import (
    Level,
    Multipliers,
    item_costs,
    richest_cell,
    value,
)
from rpopt.records import Int64Array

_PRECISION_BITS = 24
_TOLERANCE = 1e-7
_VIOLATION = 1e-6  # of the mean attention of a cell, per group
_LONGEST_TABLE = 2**15
_PATTERNS_PER_PRICING = 2
_ROUNDS_PER_EVIDENCE = 10


def level_bound(instance: LayoutInstance, *, time_limit_s: float) -> tuple[Bound, ...]:
    """Return lower bounds on J in ticks, weakest first.

    The first is the volume bound, so the last is never below it. Where no group is
    forced above the mean, there is nothing else.

    Parameters
    ----------
    instance
        The layout instance.
    time_limit_s
        Seconds for everything; what is known by then is returned.
    """
    deadline_s = time.monotonic() + time_limit_s
    floor = volume(instance)
    searches = []
    for attention_class in range(instance.attention_ticks_IC.shape[1]):
        search = _Search(Master(instance, attention_class), deadline_s, floor.value)
        if search.master.num_levels > 1:
            search.attention()
            searches.append(search)
    if not searches:
        return (floor,)
    best = max(searches, key=lambda search: search.best)
    best.expert_peaks()
    best.generate_patterns()
    best.search()
    return (floor, *best.found)


def _bound(instance: LayoutInstance, name: str, multipliers: Multipliers) -> Bound:
    return Bound(
        name=name,
        kind="arithmetic",
        value=value(instance, multipliers),
        evidence=multipliers.evidence(),
    )


@dataclass(eq=False)
class _Search:
    """The four steps on one attention class."""

    master: Master
    deadline_s: float
    best: int
    found: list[Bound] = field(default_factory=list)
    multipliers: Multipliers | None = None

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())

    def offer(self, name: str, multipliers: Multipliers) -> None:
        """Keep the bound of multipliers if it is the best so far."""
        bound = _bound(self.master.instance, name, multipliers)
        if bound.value > self.best:
            self.found = [b for b in self.found if b.name != name] + [bound]
            self.best, self.multipliers = bound.value, multipliers

    def attention(self) -> None:
        """Step 1."""
        fills = self.master.compact(range(self.master.num_levels))
        with LpHandle(self.master.model(fills)) as handle:
            result = handle.solve(self.left_s)
        if result.status is Termination.OPTIMAL:
            self.offer("levels_attention", _multipliers(self.master, result))

    def expert_peaks(self) -> None:
        """Step 2: add the rows (7) that are violated until none is."""
        master = self.master
        levels = range(master.num_levels)
        fills = master.compact(levels)
        new = [(k, layer, q) for k in levels for layer, q in master.volume_peaks()]
        while new and self.left_s > 0:
            master.peaks += new
            with LpHandle(master.model(fills)) as handle:
                result = handle.solve(self.left_s)
            if result.status is not Termination.OPTIMAL:
                return
            self.offer("levels", _multipliers(master, result))
            new = _violated(master, fills, result)

    def generate_patterns(self) -> None:
        """Step 3: column generation, then violated rows (7), then again."""
        master = self.master
        forced = range(1, master.num_levels)
        fills = Fills.left_out(master.instance.num_items).joined(master.compact([0]))
        for k in forced:
            singles = [(i,) for i in master.allowed(k).tolist()]
            fills = fills.joined(Fills.patterns(k, singles))
        while self.left_s > 0:
            with LpHandle(master.model(fills)) as handle:
                fills, result = self._generate(handle, fills)
            if result is None:
                return
            new = _violated(master, fills, result)
            if not new:
                return
            master.peaks += new

    def _generate(
        self, handle: LpHandle, fills: Fills
    ) -> tuple[Fills, LpResult | None]:
        """Add patterns until none improves; return all fills and the last solution."""
        master, rounds = self.master, 0
        while self.left_s > 0:
            result = handle.solve(self.left_s)
            if result.status is not Termination.OPTIMAL:
                break
            new = [
                Fills.patterns(k, patterns)
                for k in range(1, master.num_levels)
                if (patterns := _price(master, result, k))
            ]
            rounds += 1
            if not new or rounds % _ROUNDS_PER_EVIDENCE == 0:
                self.offer("levels_patterns", _multipliers(master, result, fills))
            if not new:
                return fills, result
            for part in new:
                fills = fills.joined(part)
                columns = master.columns(part)
                columns.sort_indices()
                num = len(part.items)
                handle.add_columns(
                    master.costs(part),
                    columns.indptr,
                    columns.indices,
                    columns.data,
                    np.zeros(num),
                    np.full(num, np.inf),
                )
        return fills, None

    def search(self) -> None:
        """Step 4."""
        master, instance = self.master, self.master.instance
        if self.left_s == 0 or self.multipliers is None:
            return
        fills = master.compact(range(master.num_levels))
        model = master.model(fills, whole=True, cuts=_cuts(master, self.multipliers))
        result = solve(model, time_limit_s=self.left_s)
        if result.raw_bound is None:
            return
        ticks = result.raw_bound * (1 - 1e-9) * master.unit / instance.num_shards
        found = instance.offset_ticks + math.ceil(ticks - 1e-9 * master.unit)
        if found > self.best:
            evidence = {
                "raw": result.raw_bound,
                "unit_ticks": master.unit,
                "relative_tolerance": 1e-9,
                "termination": str(result.termination),
                "num_nodes": result.num_nodes,
                "model_digest": result.model_digest,
            }
            bound = Bound(
                name="levels_search", kind="solver", value=found, evidence=evidence
            )
            self.found.append(bound)


# -------------------------------------------------------------------- reading the duals


def _multipliers(
    master: Master, result: LpResult, fills: Fills | None = None
) -> Multipliers:
    """Round the duals of a program to multipliers.

    Parameters
    ----------
    fills
        Given when some levels are filled with patterns; by default all are compact.
    """
    instance, duals = master.instance, result.row_duals
    assert duals is not None
    size = master.num_levels
    unit = instance.shard_size << _PRECISION_BITS
    alpha_K = [round(-d * unit) for d in duals[master.row("attention") :][:size]]
    alpha_K = [max(0, a) for a in alpha_K]
    alpha_K[-1] = min(alpha_K[-1], 1 << _PRECISION_BITS)
    levels = tuple(
        Level(above=above, alpha=alpha, theta=_theta(master, duals, k))
        for k, (above, alpha) in enumerate(zip(master.above_K, alpha_K, strict=True))
    )
    price_I = [round(p * master.unit * unit) for p in duals[: instance.num_items]]
    start = Multipliers(
        attention_class=master.attention_class,
        denominator=unit,
        price_I=tuple(price_I),
        levels=levels,
    )
    room_K = [
        max(0, round(-d * master.unit * unit / instance.token_cap))
        for d in duals[master.row("cells") :][:size]
    ]
    compact = range(size) if fills is None else [0]
    return replace(start, price_I=_highest_prices(master, start, room_K, compact))


def _highest_prices(
    master: Master,
    multipliers: Multipliers,
    room_K: list[int],
    compact: range | list[int],
) -> tuple[int, ...]:
    """Return the highest prices that compact levels allow."""
    instance = master.instance
    price_I = np.array(multipliers.price_I, dtype=object)
    highest_I = np.full(instance.num_items, None, dtype=object)
    for k in compact:
        cost_I = item_costs(instance, multipliers, multipliers.levels[k])
        cost_I = cost_I + instance.weight_I.astype(object) * room_K[k]
        for i in master.allowed(k):
            if highest_I[i] is None or cost_I[i] < highest_I[i]:
                highest_I[i] = cost_I[i]
    all_compact = len(compact) == master.num_levels
    return tuple(
        price if highest is None else highest if all_compact else min(price, highest)
        for price, highest in zip(price_I.tolist(), highest_I.tolist(), strict=True)
    )


def _theta(
    master: Master, duals: FloatArray, level: int
) -> tuple[tuple[int, int, int], ...]:
    """Return the multipliers of the rows (7) of a level in ticks per copy."""
    weight_L = master.instance.layer_weight_ticks_L.tolist()
    if not master.peaks:
        return tuple((layer, q, weight_L[layer]) for layer, q in master.volume_peaks())
    theta: dict[tuple[int, int], int] = {}
    left_L = list(weight_L)
    rows = enumerate(master.peaks, start=master.row("peaks"))
    share = [(duals[m], layer, q) for m, (k, layer, q) in rows if k == level]
    for dual, layer, q in sorted(share):
        ticks = min(left_L[layer], math.ceil(max(0.0, dual) * weight_L[layer]))
        left_L[layer] -= ticks
        theta[layer, q] = ticks
    # What rounding left over goes to the largest of each layer.
    largest = {layer: (layer, q) for _, layer, q in sorted(share)}
    for layer, key in largest.items():
        theta[key] += left_L[layer]
    return tuple((layer, q, t) for (layer, q), t in sorted(theta.items()) if t)


def _violated(
    master: Master, fills: Fills, result: LpResult
) -> list[tuple[int, int, int]]:
    """Return, for each level and layer, the busiest EP rank that has no row yet."""
    assert result.x is not None
    load_ILP, present = master.load_ILP, set(master.peaks)
    slack = _VIOLATION * master.instance.num_groups
    new = []
    for k in range(master.num_levels):
        share_I = np.zeros(load_ILP.shape[0])
        for f in np.flatnonzero(fills.level_F == k).tolist():
            share_I[list(fills.items[f])] += result.x[master.num_fixed + f]
        load_LP = np.tensordot(share_I, load_ILP, axes=1)
        for j, q in enumerate(load_LP.argmax(axis=1).tolist()):
            known = [
                load_LP[j, r] for level, layer, r in present if (level, layer) == (k, j)
            ]
            if known and load_LP[j, q] > max(known) + slack:
                new.append((k, j, q))
    return new


# ---------------------------------------------------------------------------- patterns


def _price(master: Master, result: LpResult, level: int) -> list[tuple[int, ...]]:
    """Return patterns of a level with negative reduced cost."""
    duals, instance = result.row_duals, master.instance
    assert duals is not None
    alpha = -duals[master.row("attention") + level]
    room = -duals[master.row("cells") + level]
    worth_I = duals[: instance.num_items] - alpha * master.lead_I / master.unit
    worth_I = worth_I - master.other_I / instance.shard_size
    for m, (k, layer, q) in enumerate(master.peaks, start=master.row("peaks")):
        if k == level:
            worth_I -= duals[m] * master.load_ILP[:, layer, q]
    worth_I[np.setdiff1d(np.arange(instance.num_items), master.allowed(level))] = 0
    found: list[tuple[int, ...]] = []
    for _ in range(_PATTERNS_PER_PRICING):
        pattern = best_pattern(worth_I, instance.weight_I, instance.token_cap)
        if worth_I[list(pattern)].sum() <= room + _TOLERANCE:
            break
        found.append(pattern)
        worth_I[max(pattern, key=lambda i: worth_I[i])] = 0
    return found


def best_pattern(
    worth_I: FloatArray, weight_I: Int64Array, cap: int
) -> tuple[int, ...]:
    """Return the most valuable items that fit a cell together, by dynamic programming.

    Large caps are divided and weights rounded up, which may miss the best one.
    """
    grain = -(-cap // _LONGEST_TABLE)
    item_T = np.flatnonzero(worth_I > 0)
    weight_T = (-(-weight_I[item_T] // grain)).tolist()
    room = cap // grain
    best = np.zeros(room + 1)
    better_TW = np.zeros((item_T.size, room + 1), dtype=bool)
    for t, (i, weight) in enumerate(zip(item_T.tolist(), weight_T, strict=True)):
        if weight <= room:
            with_item = best[: room + 1 - weight] + worth_I[i]
            better_TW[t, weight:] = with_item > best[weight:]
            np.maximum(best[weight:], with_item, out=best[weight:])
    chosen = []
    for t in range(item_T.size - 1, -1, -1):
        if better_TW[t, room]:
            chosen.append(int(item_T[t]))
            room -= weight_T[t]
    return tuple(chosen[::-1])


def _cuts(
    master: Master, multipliers: Multipliers
) -> list[tuple[int, FloatArray, float]]:
    """Return, per forced level, the knapsack that multipliers make of its cells."""
    instance, cuts = master.instance, []
    for k in range(1, master.num_levels):
        price_I = np.array(multipliers.price_I, dtype=object)
        worth_I = price_I - item_costs(instance, multipliers, multipliers.levels[k])
        allowed_I = np.zeros(instance.num_items, dtype=bool)
        allowed_I[master.allowed(k)] = True
        most = richest_cell(instance, worth_I, allowed_I)
        if most > 0:
            gain_I = np.maximum(worth_I, 0) / most
            cuts.append((k, gain_I.astype(np.float64), 1 + 1e-9))
    return cuts
