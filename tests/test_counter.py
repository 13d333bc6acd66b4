"""Counter-based randomness: the published generator, the same in every form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.counter import GOLDEN, MASK, below, draw, draws, generator, key, mix

words = st.integers(0, MASK)


def test_draws_of_key_zero_are_splitmix64() -> None:
    """The reference implementation's first outputs for the seed 0."""
    assert [draw(0, i) for i in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_keys_never_change() -> None:
    """Plans are reproducible only while these stay the same."""
    assert [key(0), key(1, 2, 3), key(-1)] == [
        0x0397AB29740681D9,
        0x003F53A1FE784BBF,
        0x42D30092DCD06D20,
    ]
    assert generator(1, 2, 3).integers(2**32, size=2).tolist() == [
        4013641591,
        3391510089,
    ]


@given(words)
def test_mixing_is_one_to_one(value: int) -> None:
    mixed = mix(value)
    assert 0 <= mixed <= MASK
    assert mix(value ^ 1) != mixed
    assert mix(value + 2**64) == mixed


@given(words, st.integers(0, 50))
def test_numpy_draws_are_the_same(start: int, count: int) -> None:
    assert draws(start, count).tolist() == [draw(start, i) for i in range(count)]
    assert draws(start, count).dtype == np.uint64


@given(st.integers(-(2**70), 2**70), words)
def test_any_coordinate_is_a_key(seed: int, step: int) -> None:
    found = key(seed, step)
    assert 0 <= found <= MASK
    assert found == key(seed & MASK, step)
    assert len({found, key(step, seed), key(seed, step, 0), key(seed + 1, step)}) >= 3


def test_keys_depend_on_order_and_number() -> None:
    coordinates = [(), (0,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (-1,)]
    assert len({key(*c) for c in coordinates}) == len(coordinates)


@given(words, st.integers(1, 2**31 - 1))
def test_below_is_in_range(bits: int, bound: int) -> None:
    assert 0 <= below(bits, bound) < bound


def test_below_is_uniform() -> None:
    count = np.bincount([below(int(w), 7) for w in draws(key(1), 7000)], minlength=7)
    assert count.min() > 850
    assert count.max() < 1150


def test_generators_are_keyed() -> None:
    first = generator(3, 1).integers(2**32, size=4)
    assert np.array_equal(first, generator(3, 1).integers(2**32, size=4))
    assert not np.array_equal(first, generator(1, 3).integers(2**32, size=4))


@pytest.mark.parametrize("index", [0, 5])
def test_draws_step_by_the_golden_ratio(index: int) -> None:
    assert draw(9, index + 1) == draw(9 + GOLDEN, index)
