"""Fixed-point functions against the mathematics library."""

import math

import numpy as np
import pytest

from rpopt.anneal import fixed


def test_log2_is_exact_to_its_last_bits() -> None:
    for value in (1, 2, 3, 7, 1000, 2**40 + 1, 2**44, 10**18):
        assert fixed.log2(value) == pytest.approx(2**16 * math.log2(value), abs=1.01)


def test_neglog_table_is_the_logarithm_of_cell_middles() -> None:
    table = fixed.neglog_table()
    middles = (np.arange(table.size) + 0.5) / table.size
    np.testing.assert_allclose(
        table / 2**fixed.NEGLOG_BITS, -np.log(middles), atol=1e-4
    )
    assert (np.diff(table) <= 0).all()
    assert int(table.max()) * fixed.MAX_TEMPERATURE < 2**62


def test_exponential_weights_follow_exp() -> None:
    exponent = np.array([0, 1, 500, 2**16, 5 * 2**16, 20 * 2**16, 2**36])
    weights = fixed.exp_weights(exponent, 16) / 2**fixed.WEIGHT_BITS
    np.testing.assert_allclose(weights, np.exp(-exponent / 2**16), rtol=2e-3, atol=1e-9)
    assert weights[0] == 1


def test_shrink_is_a_power_of_two() -> None:
    for exponent in (0, 2**15, 2**16, 3 * 2**16 + 1000):
        expected = 10**12 * 2.0 ** (-exponent / 2**16)
        assert fixed.shrink(10**12, exponent) == pytest.approx(expected, rel=1e-3)
