"""What travels is what was brought, and no more than that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import InstanceError, MismatchError
from rpopt.online.samples import (
    LocalSamples,
    decode,
    encode,
    full_window,
    lengths_window,
)
from tests.cases import random_window


def split(num_ranks: int, *, seed: int = 0) -> list[LocalSamples]:
    """The samples of a window, dealt to ranks in blocks; the first rank has none."""
    window = random_window(seed, num_samples=9)
    assert window.demand_NLE is not None
    edges = np.linspace(0, 9, num_ranks).astype(int)
    return [
        LocalSamples(
            length_N=window.length_N[first:last],
            demand_NLE=window.demand_NLE[first:last],
            top_k=window.top_k,
            routed_tokens_N=window.routed_N[first:last],
        )
        for first, last in zip([0, *edges[:-1]], edges, strict=True)
    ]


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 99), num_ranks=st.integers(2, 12))
def test_the_window_arrives_as_it_was(seed: int, num_ranks: int) -> None:
    window = random_window(seed, num_samples=9)
    parts = [decode(encode(part)) for part in split(num_ranks, seed=seed)]
    found = full_window(parts)
    assert np.array_equal(found.length_N, window.length_N)
    assert np.array_equal(found.demand_NLE, window.demand_NLE)
    assert np.array_equal(found.routed_N, window.routed_N)
    assert lengths_window(parts).num_layers == 0


def test_a_sparse_histogram_is_a_short_message() -> None:
    demand_NLE = np.zeros((64, 48, 128), dtype=np.int32)
    demand_NLE[:, :, ::16] = 300
    samples = LocalSamples(length_N=np.full(64, 300), demand_NLE=demand_NLE, top_k=8)
    assert len(encode(samples)) < demand_NLE.nbytes / 50


def test_all_tokens_count_in_the_loss_unless_said_otherwise() -> None:
    plain = decode(encode(LocalSamples(length_N=np.array([5, 7]))))
    assert plain.loss_tokens_N is not None
    assert plain.loss_tokens_N.tolist() == [5, 7]
    masked = LocalSamples(length_N=np.array([5, 7]), loss_tokens_N=np.array([1, 2]))
    found = decode(encode(masked)).loss_tokens_N
    assert found is not None
    assert found.tolist() == [1, 2]


def test_ranks_that_differ_are_refused() -> None:
    first, second = split(3)[1:]
    bare = LocalSamples(length_N=second.length_N)
    with pytest.raises(MismatchError, match="bring histograms of the same model"):
        full_window([first, bare])
    with pytest.raises(InstanceError, match="loss_tokens_N has shape"):
        encode(LocalSamples(length_N=np.array([5]), loss_tokens_N=np.array([1, 2])))
