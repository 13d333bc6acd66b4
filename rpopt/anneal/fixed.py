"""Fixed-point logarithms and exponentials made from whole numbers only.

Acceptance, resampling and the schedule need -log u, exp(-x) and log2 x. They come from
the functions below, which use integer squares, products and square roots and never the
platform's mathematics library, so every machine gets the same bits.

Axis letters: U entries of a table.
"""

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from rpopt.records import Int64Array

NEGLOG_BITS = 14
NEGLOG_INDEX_BITS = 12
LOG2_BITS = 16
WEIGHT_BITS = 30
_EXP_INDEX_BITS = 10
_LN2 = 0xB17217F7D1CF79AB  # floor(log(2) 2**64)
_LOG2E_BITS = 24
_LOG2E = (1 << (64 + _LOG2E_BITS)) // _LN2

MAX_TEMPERATURE = 1 << 44
"""Largest temperature in ticks; times any table entry it stays below 2**62."""


def log2(value: int, bits: int = LOG2_BITS) -> int:
    """Return floor(2**bits log2(value)) up to the last bits, for value >= 1."""
    whole = value.bit_length() - 1
    mantissa = (value << 40) >> whole
    fraction = 0
    for _ in range(bits):
        mantissa = (mantissa * mantissa) >> 40
        carry = mantissa >> 41
        mantissa >>= carry
        fraction = 2 * fraction + carry
    return (whole << bits) + fraction


@cache
def neglog_table() -> npt.NDArray[np.int32]:
    """Return -log((k + 1/2) / U) with `NEGLOG_BITS` fractional bits, int32 [U]."""
    scale, extra = NEGLOG_INDEX_BITS + 1, 20
    values = [
        (((scale << extra) - log2(2 * k + 1, extra)) * _LN2)
        >> (64 + extra - NEGLOG_BITS)
        for k in range(1 << NEGLOG_INDEX_BITS)
    ]
    return np.array(values, dtype=np.int32)


@cache
def _exp2_table() -> Int64Array:
    """Return 2**(-k / U) with `WEIGHT_BITS` fractional bits, int64 [U]."""
    roots, root = [], 1 << 119
    for _ in range(_EXP_INDEX_BITS):  # 2**(-1/2), 2**(-1/4), ... with 60 bits
        root = math.isqrt(root)
        roots.append(root)
        root <<= 60
    values = []
    for k in range(1 << _EXP_INDEX_BITS):
        product = 1 << 60
        for bit, root in enumerate(roots):
            if k >> (_EXP_INDEX_BITS - 1 - bit) & 1:
                product = (product * root) >> 60
        values.append(product >> (60 - WEIGHT_BITS))
    return np.array(values, dtype=np.int64)


def shrink(value: int, exponent: int) -> int:
    """Return value 2**(-exponent / 2**LOG2_BITS), rounded down."""
    index = (exponent >> (LOG2_BITS - _EXP_INDEX_BITS)) & ((1 << _EXP_INDEX_BITS) - 1)
    return (value * int(_exp2_table()[index])) >> (
        WEIGHT_BITS + (exponent >> LOG2_BITS)
    )


def exp_weights(exponent: Int64Array, bits: int) -> Int64Array:
    """Return exp(-exponent / 2**bits) with `WEIGHT_BITS` fractional bits.

    Parameters
    ----------
    exponent
        Whole numbers in [0, 2**38).
    bits
        Their fractional bits, at least 10.
    """
    binary = (exponent * _LOG2E) >> _LOG2E_BITS
    whole = np.minimum(binary >> bits, WEIGHT_BITS + 1)
    index = (binary >> (bits - _EXP_INDEX_BITS)) & ((1 << _EXP_INDEX_BITS) - 1)
    return _exp2_table()[index] >> whole
