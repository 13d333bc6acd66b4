"""Resampling: the next temperature and every replica's parent, from energies alone.

Whole numbers only, so that any number of processes that hold the same energies decides
the same. The temperature falls until the expected share of replicas that die reaches a
target (the culling fraction); resampling is systematic; survivors keep their slot.

Axis letters: B replicas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rpopt import counter
from rpopt.anneal.fixed import WEIGHT_BITS, exp_weights
from rpopt.records import Int64Array

_STREAM = 0x726573616D706C65
_ENERGY_BITS = 16  # fractional bits of an energy in units of the temperature
_RATIO_BITS = 16  # resolution of the next temperature as a share of this one
_HIGHEST = 1 << 30  # energies further above the best count as this far (2**14 T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampling:
    """One step of the population to a lower temperature.

    Parameters
    ----------
    temperature
        The next temperature, in ticks.
    parent_B
        The replica that each slot continues.
    culled
        Replicas without offspring.
    log_mean_weight
        Logarithm of the mean weight: this step's part of the free-energy estimate.
    """

    temperature: int
    parent_B: tuple[int, ...]
    culled: int
    log_mean_weight: float


def resample(
    energy_B: Int64Array,
    temperature: int,
    *,
    lowest: int,
    highest: int,
    culling: tuple[int, int],
    seed: int,
    step: int,
) -> Resampling:
    """Decide the next temperature and the parents.

    Parameters
    ----------
    energy_B
        Energies of the whole population, in ticks.
    temperature
        The temperature they were sampled at, in ticks.
    lowest, highest
        Range of the next temperature: the schedule's limits on the size of a step.
    culling
        Target share of replicas to lose, as a fraction (numerator, denominator).
    seed, step
        Coordinates of the one random number of the resampling.
    """
    lowest_energy = int(energy_B.min())
    scaled_B = np.array(
        [
            min(((int(e) - lowest_energy) << _ENERGY_BITS) // temperature, _HIGHEST)
            for e in energy_B
        ],
        dtype=np.int64,
    )
    one = 1 << _RATIO_BITS
    low, high = -(-(lowest << _RATIO_BITS) // temperature), one
    while low < high:  # smallest ratio whose culling fraction stays below the target
        middle = (low + high) // 2
        if _within(_weights(scaled_B, middle), culling):
            high = middle
        else:
            low = middle + 1
    following = min(max(lowest, (temperature * low) >> _RATIO_BITS), highest)
    ratio = max(1, (following << _RATIO_BITS) // temperature)
    weight_B = _weights(scaled_B, ratio)
    word = counter.draw(counter.key(seed, _STREAM, step), 0) >> 32
    copies = _systematic(weight_B, word)
    mean = int(weight_B.sum()) / (energy_B.size << WEIGHT_BITS)
    shift = (lowest_energy / temperature) - (lowest_energy / max(1, following))
    return Resampling(
        temperature=following,
        parent_B=_parents(copies),
        culled=sum(c == 0 for c in copies),
        log_mean_weight=math.log(mean) + shift,
    )


def _weights(scaled_B: Int64Array, ratio: int) -> Int64Array:
    """Return exp(-(1 / T' - 1 / T) (E - lowest)) for T' = ratio T / 2**bits."""
    factor = (((1 << _RATIO_BITS) - ratio) << _RATIO_BITS) // ratio
    exponent_B = np.minimum((scaled_B * factor) >> _RATIO_BITS, 1 << 36)
    return exp_weights(exponent_B, _ENERGY_BITS)


def _within(weight_B: Int64Array, culling: tuple[int, int]) -> bool:
    """Return whether the expected share of lost replicas is at most the target."""
    total = int(weight_B.sum())
    lost = int(np.maximum(total - weight_B * weight_B.size, 0).sum())
    return lost * culling[1] <= culling[0] * total * weight_B.size


def _systematic(weight_B: Int64Array, word: int) -> list[int]:
    """Return copies per replica: floor or ceiling of their expected number."""
    total = int(weight_B.sum())
    offset = (word * total) >> 32
    copies, cumulative, before = [], 0, 0
    for weight in weight_B.tolist():
        cumulative += weight
        upto = (cumulative * weight_B.size + offset) // total
        copies.append(upto - before)
        before = upto
    return copies


def _parents(copies: Sequence[int]) -> tuple[int, ...]:
    """Leave survivors in their slots and give freed slots to their extra copies."""
    extra = [b for b, count in enumerate(copies) for _ in range(count - 1)]
    spare = iter(extra)
    return tuple(b if count else next(spare) for b, count in enumerate(copies))
