"""The plan of a run: how hot, how cold, and how many moves at each temperature.

Moves are spent evenly over the logarithm of the temperature. Every stage takes its
share of what is then left, so that a run reaches the coldest temperature within its
budget, whatever the resampling decides and however the machine's speed changes.

Axis letters: as in `rpopt.anneal.tables`; n sampled swaps.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rpopt import counter
from rpopt.anneal.fixed import MAX_TEMPERATURE, exp_weights, log2, shrink
from rpopt.anneal.tables import Sums, Tables, sums
from rpopt.records import Int64Array, IntArray
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion

_STREAM = 0x7363686564756C65
_NUM_SAMPLES = 256
_RATIO_BITS = 12
_COLD_DIVISOR = 32  # of the change that one sampled swap in twenty stays below
_MAX_STEP = 12625  # log2(8 / 7): a stage never cools by more than an eighth
_MIN_STEP = 2048  # 1 / 32: and by two percent at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that a stop criterion names; None where it names none."""

    seconds_s: float | None
    sweeps: int | None

    @classmethod
    def of(cls, stop: StopCriterion) -> "Limits":
        """Read the limits of the criteria that can be planned for."""
        if isinstance(stop, MaxRuntime):
            return cls(seconds_s=stop.seconds_s, sweeps=None)
        if isinstance(stop, MaxSweeps):
            return cls(seconds_s=None, sweeps=stop.sweeps)
        limits = [cls.of(c) for c in stop.criteria] if isinstance(stop, FirstOf) else []
        seconds = [v.seconds_s for v in limits if v.seconds_s is not None]
        sweeps = [v.sweeps for v in limits if v.sweeps is not None]
        return cls(
            seconds_s=min(seconds, default=None), sweeps=min(sweeps, default=None)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperatures:
    """The range of a run, and where in it the start belongs, in ticks."""

    hot: int
    cold: int
    start: int

    @property
    def from_start(self) -> "Temperatures":
        """The part of the range that does not undo the start."""
        return replace(self, hot=self.start)

    def highest_next(self, temperature: int, sweeps: int) -> int:
        """Return the smallest step down that `sweeps` sweeps can afford."""
        step = max(_MIN_STEP, -(-self.span(temperature) // max(1, sweeps)))
        return max(self.cold, min(temperature - 1, shrink(temperature, step)))

    def lowest_next(self, temperature: int) -> int:
        """Return the largest step down."""
        return max(self.cold, min(temperature - 1, shrink(temperature, _MAX_STEP)))

    def span(self, temperature: int) -> int:
        """Return log2(temperature / cold) in fixed point."""
        return max(0, log2(temperature) - log2(self.cold))

    def share(self, before: int, after: int, moves: int) -> int:
        """Return the part of the moves left at `before` to spend at `after`."""
        span = self.span(before)
        step = span - self.span(after) if before != after else min(span, _MAX_STEP)
        return moves if after == self.cold or span == 0 else moves * step // span


def temperatures(tables: Tables, cell_I: IntArray, seed: int) -> Temperatures:
    """Choose the range from what swaps do to a start.

    The median change of the two touched groups is the hot end: about every other swap
    is then accepted. A fraction of the smallest changes is the cold end: hardly any is.
    The start's own temperature is the highest of the range at which the accepted swaps
    do not raise the energy in the mean.
    """
    swaps = _sample_swaps(tables, cell_I, seed)
    changes = np.sort(swaps.change_n[swaps.change_n > 0])
    if changes.size == 0:
        return Temperatures(hot=1, cold=1, start=1)
    hot = min(MAX_TEMPERATURE, int(changes[changes.size // 2]))
    cold = max(1, int(changes[changes.size // 20]) // _COLD_DIVISOR)
    span = Temperatures(hot=hot, cold=min(hot, cold), start=hot)
    return replace(span, start=_balance(swaps.growth_n, span))


def _balance(growth_n: Int64Array, span: Temperatures) -> int:
    """Return the highest temperature at which the mean accepted change is not > 0."""
    growths = growth_n.tolist()

    def drifts_up(temperature: int) -> bool:
        limit = temperature << _RATIO_BITS  # above it, no weight is left
        ratio_n = [
            (min(max(g, 0), limit) << _RATIO_BITS) // temperature for g in growths
        ]
        weight_n = exp_weights(np.array(ratio_n, dtype=np.int64), _RATIO_BITS)
        return sum(g * w for g, w in zip(growths, weight_n.tolist(), strict=True)) > 0

    low, high = 0, span.span(span.hot)  # in units of log2(hot / temperature)
    while low < high:
        middle = (low + high) // 2
        if drifts_up(shrink(span.hot, middle)):
            low = middle + 1
        else:
            high = middle
    return max(span.cold, shrink(span.hot, low))


class _Swaps(NamedTuple):
    """What sampled swaps of items of different groups would do.

    Parameters
    ----------
    change_n
        |change of one group's ticks| + |change of the other's|.
    growth_n
        Change of the energy, of those swaps that keep the constraints.
    """

    change_n: Int64Array
    growth_n: Int64Array


def _sample_swaps(t: Tables, cell_I: IntArray, seed: int) -> _Swaps:
    """Price swaps drawn like the moves."""
    known = Sums(*(value[0] for value in sums(t, cell_I[None])))
    i_n, j_n = _draw_pairs(t.num_items, seed)
    apart_n = t.group_K[cell_I[i_n]] != t.group_K[cell_I[j_n]]
    i_n, j_n = i_n[apart_n], j_n[apart_n]
    attention_GhC = known.attention_BKC.reshape(
        -1, t.shard_size, t.attention_IC.shape[1]
    )
    gains, fits_n = [], np.ones(i_n.size, dtype=bool)
    for out_n, in_n in ((i_n, j_n), (j_n, i_n)):
        cell_n = cell_I[out_n]
        group_n = t.group_K[cell_n]
        load_nX = t.load_IX[in_n].astype(np.int64) - t.load_IX[out_n]
        load_nX += known.load_BGX[group_n]
        peak_nL = load_nX.reshape(-1, t.num_ep_ranks, t.layer_weight_L.size).max(axis=1)
        expert_n = (peak_nL * t.layer_weight_L).sum(axis=1)
        attention_nhC = attention_GhC[group_n]
        attention_nhC[np.arange(i_n.size), cell_n % t.shard_size] += (
            t.attention_IC[in_n] - t.attention_IC[out_n]
        )
        attention_n = attention_nhC.max(axis=1).sum(axis=1)
        gains.append(expert_n + attention_n - known.ticks_BG[group_n])
        size_nH = known.size_BKH[cell_n] + t.size_IH[in_n] - t.size_IH[out_n]
        fits_n &= (size_nH[:, 0] <= t.token_cap) & (size_nH[:, 1] <= t.sample_limit)
    entry_nV = np.tile(known.entry_BV, (i_n.size, 1))
    for gain_n, item_n in zip(gains, (i_n, j_n), strict=True):
        entry_n = t.entry_G[t.group_K[cell_I[item_n]]]
        entry_nV[np.arange(i_n.size), entry_n] += gain_n
    slowest_n = (
        entry_nV.reshape(i_n.size, known.entry_BV.size // t.num_shards, t.num_shards)
        .max(axis=2)
        .sum(axis=1)
    )
    total_n = known.total_B + gains[0] + gains[1]
    energy_n = slowest_n + t.offset_ticks + (total_n >> t.mean_shift)
    return _Swaps(
        change_n=np.abs(gains[0]) + np.abs(gains[1]),
        growth_n=(energy_n - known.energy_B)[fits_n],
    )


def _draw_pairs(num_items: int, seed: int) -> tuple[Int64Array, Int64Array]:
    """Return pairs of items whose distance has a uniform logarithm."""
    word_n3 = counter.draws(counter.key(seed, _STREAM), 3 * _NUM_SAMPLES).reshape(-1, 3)
    first_n, scale_n, step_n = (word_n3 >> np.uint64(32)).astype(np.int64).T
    bits = max(1, (num_items - 1).bit_length())
    i_n = (first_n * num_items) >> 32
    reach_n = np.maximum(1, (num_items - 1) >> ((scale_n * bits) >> 32))
    return i_n, (i_n + 1 + ((step_n * reach_n) >> 32)) % num_items
