"""The plan of a run: how hot, how cold, and how many moves at each temperature.

Moves are spent evenly over the logarithm of the temperature. Every stage takes its
share of what is then left, so that a run reaches the coldest temperature within its
budget, whatever the resampling decides and however the machine's speed changes.

Axis letters: as in `rpopt.anneal.tables`.
"""

from dataclasses import dataclass

import numpy as np

from rpopt import counter
from rpopt.anneal.fixed import MAX_TEMPERATURE, log2, shrink
from rpopt.anneal.tables import Tables, sums
from rpopt.records import IntArray
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion

_STREAM = 0x7363686564756C65
_NUM_SAMPLES = 256
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
    """The range of a run, in ticks."""

    hot: int
    cold: int

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
    """Choose the range from what swaps do to the two groups they touch.

    The median change is the hot end: about every other swap is then accepted. A
    fraction of the smallest changes is the cold end: hardly any is.
    """
    changes = np.sort(_swap_changes(tables, cell_I, seed))
    changes = changes[changes > 0]
    if changes.size == 0:
        return Temperatures(hot=1, cold=1)
    hot = min(MAX_TEMPERATURE, int(changes[changes.size // 2]))
    cold = max(1, int(changes[changes.size // 20]) // _COLD_DIVISOR)
    return Temperatures(hot=hot, cold=min(hot, cold))


def _swap_changes(t: Tables, cell_I: IntArray, seed: int) -> np.ndarray:
    """Return |change of group 1| + |change of group 2| for sampled swaps."""
    known, num_items = sums(t, cell_I[None]), t.num_items
    if num_items < 2:
        return np.zeros(0, dtype=np.int64)
    word = counter.draws(counter.key(seed, _STREAM), 3 * _NUM_SAMPLES).astype(object)
    bits = max(1, (num_items - 1).bit_length())
    changes = []
    for first, scale, step in word.reshape(-1, 3):
        i = counter.below(first, num_items)
        reach = max(1, (num_items - 1) >> counter.below(scale, bits))
        j = (i + 1 + counter.below(step, reach)) % num_items
        groups = t.group_K[cell_I[i]], t.group_K[cell_I[j]]
        if groups[0] == groups[1]:
            continue
        change = 0
        for sign, group, cell in (
            (1, groups[0], cell_I[i]),
            (-1, groups[1], cell_I[j]),
        ):
            load_X = known.load_BGX[0, group] + sign * (
                t.load_IX[j].astype(np.int64) - t.load_IX[i]
            )
            load_PL = load_X.reshape(t.num_ep_ranks, -1)
            expert = int((load_PL.max(axis=0) * t.layer_weight_L).sum())
            gain_C = sign * (t.attention_IC[j] - t.attention_IC[i])
            attention_KC = known.attention_BKC[0].copy()
            attention_KC[cell] += gain_C
            attention = attention_KC[t.group_K == group].max(axis=0).sum()
            change += abs(int(expert + attention - known.ticks_BG[0, group]))
        changes.append(change)
    return np.array(changes, dtype=np.int64)
