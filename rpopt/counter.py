"""Counter-based randomness: a hash of (seed, stream, step, draw) and nothing else.

A draw depends only on its coordinates, so any engine, device or number of processes
sees the same numbers. Only 64-bit wrapping addition, multiplication, exclusive or and
logical shifts are used, so torch (int64), NumPy (uint64) and compiled loops agree.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014).
"""

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
MASK = 2**64 - 1


def mix(value: int) -> int:
    """Return the 64-bit mixture of a 64-bit value."""
    value &= MASK
    value = ((value ^ (value >> 30)) * MIX_1) & MASK
    value = ((value ^ (value >> 27)) * MIX_2) & MASK
    return value ^ (value >> 31)


def key(*coordinates: int) -> int:
    """Return the 64-bit key of a tuple of coordinates such as (seed, stream, step)."""
    state = 0
    for coordinate in coordinates:
        state = mix((state + GOLDEN) ^ mix((coordinate & MASK) + GOLDEN))
    return state


def draw(key: int, index: int) -> int:
    """Return draw number `index` of a key: 64 random bits."""
    return mix(key + index * GOLDEN)


def below(bits: int, bound: int) -> int:
    """Turn 64 random bits into an integer in [0, bound), for bound < 2**31."""
    return ((bits >> 32) * bound) >> 32


def draws(key: int, count: int) -> npt.NDArray[np.uint64]:
    """Return draws 0 to `count` - 1 of a key as a uint64 array."""
    with np.errstate(over="ignore"):
        value = np.uint64(key) + np.arange(count, dtype=np.uint64) * np.uint64(GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(MIX_1)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(MIX_2)
        return value ^ (value >> np.uint64(31))


def generator(*coordinates: int) -> np.random.Generator:
    """Return a NumPy generator for library code off the hot path, keyed the same."""
    return np.random.Generator(np.random.Philox(key=key(*coordinates)))
