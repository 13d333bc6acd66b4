"""Seeded sample lengths of the kinds that RL rollouts and their tests show.

All kinds scale with the token cap, so that one name means one shape. Medians and
spreads are round numbers, not fits.

Axis letters: N samples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rpopt.counter import generator
from rpopt.packing.instance import PackingInstance
from rpopt.records import Int64Array

_STREAM = 0x6C656E67
Draw = Callable[[np.random.Generator, int, int], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of one kind under one cap.

    Parameters
    ----------
    kind
        A key of `KINDS`.
    samples, token_cap, seed
        How many, at most how long, and of which draw.
    """

    kind: str
    samples: int
    token_cap: int
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.samples} / {self.token_cap}"

    def draw(self) -> Int64Array:
        """Return the lengths [N], in [1, token_cap]."""
        number = list(KINDS).index(self.kind)
        rng = generator(self.seed, _STREAM, number)
        length_N = KINDS[self.kind](rng, self.samples, self.token_cap)
        return np.clip(np.rint(length_N).astype(np.int64), 1, self.token_cap)

    def instance(self, dp: int, row_multiple: int = 1) -> PackingInstance:
        return PackingInstance(
            weight_I=self.draw(),
            capacity=self.token_cap,
            num_ranks=dp,
            row_multiple=row_multiple,
        )


def uniform(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """Anything up to the cap."""
    return rng.integers(1, cap + 1, size)


def lognormal(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """A long tail: median 0.107 of the cap, sigma 1.1."""
    return 0.107 * cap * np.exp(1.1 * rng.standard_normal(size))


def rlmix(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """Seven in ten are short, the others long."""
    short = 0.05 * cap * np.exp(0.6 * rng.standard_normal(size))
    long = 0.45 * cap * np.exp(0.5 * rng.standard_normal(size))
    return np.where(rng.random(size) < 0.7, short, long)


def pareto(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """A power law of index 1.2 from 0.02 of the cap on."""
    return 0.02 * cap * (1 + rng.pareto(1.2, size))


def trip(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """Two or three to a cell: uniform between a quarter and half of the cap."""
    return rng.integers(cap // 4, cap // 2 + 1, size)


def long(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """Mostly long: median 0.336 of the cap, sigma 0.45."""
    return 0.336 * cap * np.exp(0.45 * rng.standard_normal(size))


def q64(rng: np.random.Generator, size: int, cap: int) -> np.ndarray:
    """Lengths of `lognormal`, padded to multiples of 64."""
    return np.minimum(-(-lognormal(rng, size, cap) // 64) * 64, cap // 64 * 64)


KINDS: dict[str, Draw] = {
    "uniform": uniform,
    "lognormal": lognormal,
    "rlmix": rlmix,
    "pareto": pareto,
    "trip": trip,
    "long": long,
    "q64": q64,
}
