"""Items: bundles merged, oversize policies, dummies."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError
from rpopt.items import DROPPED, Items, add_dummies, build_items
from rpopt.rules import PackingRules
from rpopt.window import Window

WINDOW = Window(length_N=[9, 2, 17, 5, 3], bundle_N=[-1, 4, -1, 0, 4])


def items(**rules: Any) -> Items:
    return build_items(WINDOW, PackingRules(**{"token_cap": 20, **rules}))


def test_bundles_merge_at_their_first_sample() -> None:
    found = items()
    assert found.item_of_sample_N.tolist() == [0, 1, 2, 3, 1]
    assert found.padded_tokens_I.tolist() == [9, 5, 17, 5]
    assert found.num_samples_I.tolist() == [1, 2, 1, 1]


def test_every_sample_is_padded_by_itself() -> None:
    assert items(pad_multiple=4).padded_tokens_I.tolist() == [12, 8, 20, 8]


def test_oversize_is_an_error_that_lists_the_samples() -> None:
    with pytest.raises(InfeasibleError) as caught:
        items(token_cap=8)
    message = str(caught.value)
    for word in ("2 samples (ids 0, 2)", "token_cap = 8", "longest 17", "'alone'"):
        assert word in message


def test_many_oversize_samples_are_listed_in_part() -> None:
    window = Window(length_N=[5] * 14)
    with pytest.raises(InfeasibleError, match=r"14 samples \(ids 0, .*, 9, … 4 more\)"):
        build_items(window, PackingRules(token_cap=4))


def test_an_oversize_bundle_is_named_by_its_samples() -> None:
    with pytest.raises(InfeasibleError, match=r"ids 1, 4"):
        build_items(
            Window(length_N=[1, 4, 1, 1, 4], bundle_N=[-1, 4, -1, 0, 4]),
            PackingRules(token_cap=7),
        )


def test_alone_fills_the_cell() -> None:
    found = items(token_cap=8, oversize="alone")
    assert found.padded_tokens_I.tolist() == [9, 5, 17, 5]
    assert found.weight_tokens_I.tolist() == [8, 5, 8, 5]


def test_drop_leaves_samples_out_and_renumbers() -> None:
    found = items(token_cap=8, oversize="drop")
    assert found.item_of_sample_N.tolist() == [DROPPED, 0, DROPPED, 1, 0]
    assert found.dropped_samples.tolist() == [0, 2]
    assert found.kept_samples.tolist() == [1, 3, 4]
    assert found.weight_tokens_I.tolist() == [5, 5]


def test_a_dropped_bundle_is_dropped_whole() -> None:
    window = Window(length_N=[3, 3, 1], bundle_N=[0, 0, -1])
    rules = PackingRules(token_cap=4, oversize="drop")
    assert build_items(window, rules).item_of_sample_N.tolist() == [-1, -1, 0]


def test_dropping_everything_is_an_error() -> None:
    with pytest.raises(InfeasibleError, match="all 2 samples .* raise the cap"):
        build_items(Window(length_N=[5, 6]), PackingRules(token_cap=4, oversize="drop"))


def test_a_bundle_larger_than_a_cell_is_an_error() -> None:
    with pytest.raises(InfeasibleError, match="samples 1, 4 has 2 samples; .* = 1"):
        items(max_samples_per_cell=1)


def test_dummies_only_when_asked_for() -> None:
    rules = PackingRules(token_cap=20, pad_multiple=4)
    with pytest.raises(InfeasibleError) as caught:
        add_dummies(items(), 6, rules)
    for word in ("4 samples", "6 cells", "dummies = True", "lower dp"):
        assert word in str(caught.value)
    allowed = PackingRules(token_cap=20, pad_multiple=4, dummies=True)
    found = add_dummies(items(pad_multiple=4), 6, allowed)
    assert (found.num_items, found.num_dummies) == (6, 2)
    assert found.weight_tokens_I.tolist() == [12, 8, 20, 8, 4, 4]
    assert found.num_samples_I.tolist() == [1, 2, 1, 1, 1, 1]
    assert found.item_of_sample_N.tolist() == [0, 1, 2, 3, 1]


def test_enough_items_need_no_dummies() -> None:
    assert add_dummies(items(), 4, PackingRules(token_cap=20)) == items()


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(-1, 3)), min_size=1, max_size=12
    ),
    st.integers(1, 8),
)
def test_items_partition_the_samples(
    samples: list[tuple[int, int]], pad_multiple: int
) -> None:
    length_N, bundle_N = map(np.array, zip(*samples, strict=True))
    rules = PackingRules(token_cap=30, pad_multiple=pad_multiple, oversize="alone")
    found = build_items(Window(length_N=length_N, bundle_N=bundle_N), rules)
    first_seen = list(dict.fromkeys(found.item_of_sample_N.tolist()))
    assert first_seen == list(range(found.num_items))
    for item in range(found.num_items):
        members = np.flatnonzero(found.item_of_sample_N == item)
        assert members.size == found.num_samples_I[item]
        assert len(set(bundle_N[members])) == 1
        assert bundle_N[members[0]] >= 0 or members.size == 1
        padded = sum(
            -(-int(n) // pad_multiple) * pad_multiple for n in length_N[members]
        )
        assert padded == found.padded_tokens_I[item]
    bundles = {b for b in bundle_N.tolist() if b >= 0}
    assert found.num_items == len(bundles) + int((bundle_N < 0).sum())


def test_totals_beyond_32_bits_are_exact() -> None:
    window = Window(length_N=[2**31 - 1] * 3, bundle_N=[0, 0, 0])
    found = build_items(window, PackingRules(token_cap=2**34, pad_multiple=2))
    assert found.padded_tokens_I.tolist() == [3 * 2**31]
