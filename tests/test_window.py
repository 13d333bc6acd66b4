"""Windows: what is derived, and what is refused with numbers and a remedy."""

from typing import Any

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.window import MAX_LENGTH_TOKENS, Window

GOOD: dict[str, Any] = {
    "length_N": [4, 2],
    "demand_NLE": [[[4, 4, 0], [2, 2, 4]], [[0, 1, 1], [1, 1, 0]]],
    "top_k": 2,
}


def test_what_follows_from_lengths_and_demand() -> None:
    window = Window(**GOOD)
    assert (window.num_samples, window.num_layers, window.num_experts) == (2, 2, 3)
    assert window.total_tokens == 6
    assert window.routed_N.tolist() == [4, 1]
    assert window.layer_ids_L is not None
    assert window.layer_ids_L.tolist() == [0, 1]


def test_lengths_alone_are_a_window() -> None:
    window = Window(length_N=[4, 2])
    assert (window.num_layers, window.num_experts, window.top_k) == (0, 0, 0)
    assert window.routed_N.tolist() == [0, 0]
    assert window == Window(length_N=[4, 2], routed_tokens_N=[0, 0])


def test_the_longest_sample_is_accepted() -> None:
    assert Window(length_N=[MAX_LENGTH_TOKENS]).total_tokens == MAX_LENGTH_TOKENS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length_N": []}, ("the window is empty", "at least one sample")),
        ({"length_N": [4, -2]}, ("sample 1 has length -2", "[1, 2147483647]")),
        ({"length_N": [0, 0]}, ("sample 0 has length 0", "(2 samples do not)")),
        ({"length_N": [4, 2.5]}, ("length_N holds 2.5", "whole numbers")),
        ({"length_N": [4, float("nan")]}, ("length_N holds nan",)),
        ({"length_N": ["4", "2"]}, ("length_N", "whole numbers")),
        ({"length_N": [4, 2**31]}, ("sample 1 has length 2147483648",)),
        ({"length_N": [4, 2**64]}, ("length_N[1] = 18446744073709551616",)),
        ({"length_N": [[4, 2]]}, ("length_N has 2 axes",)),
        ({"length_N": [4, 2, 1]}, ("demand_NLE has 2 entries for 3 samples",)),
        ({"length_N": [3, 2]}, ("sample 0 has 4 routed tokens but only 3 tokens",)),
        ({"top_k": 0}, ("top_k = 0", "at least 1")),
        ({"top_k": 4}, ("top_k = 4 exceeds the 3 experts",)),
        ({"top_k": 1, "routed_tokens_N": [4, 1]}, ("sums to 8", "1 x 4 = 4")),
        (
            {"routed_tokens_N": [4, 2]},
            ("sample 1 in layer 0 sums to 2", "2 x 2 = 4", "(1 samples differ)"),
        ),
        ({"routed_tokens_N": [4]}, ("routed_tokens_N has 1 entries for 2 samples",)),
        ({"routed_tokens_N": [4, -1]}, ("routed_tokens_N[1] = -1",)),
        (
            {"demand_NLE": [[[4, 4, 0], [2, 2, 3]], [[0, 1, 1], [1, 1, 0]]]},
            ("demand of sample 0 in layer 1 sums to 7", "2 x 4 = 8"),
        ),
        (
            {"demand_NLE": [[[9, -1, 0], [2, 2, 4]], [[0, 1, 1], [1, 1, 0]]]},
            ("demand_NLE[0, 0, 1] = -1",),
        ),
        (
            {"demand_NLE": [[[2**31, 0, 0], [2, 2, 4]], [[0, 1, 1], [1, 1, 0]]]},
            ("demand_NLE[0, 0, 0] = 2147483648",),
        ),
        ({"demand_NLE": np.zeros((2, 0, 3), int)}, ("(2, 0, 3); no axis may be 0",)),
        ({"demand_NLE": np.zeros((2, 2, 0), int)}, ("(2, 2, 0); no axis may be 0",)),
        ({"demand_NLE": [[4, 4], [1, 1]]}, ("demand_NLE has 2 axes",)),
        ({"demand_NLE": None}, ("top_k = 2", "leave both out")),
        (
            {"demand_NLE": None, "top_k": 0, "layer_ids_L": [1, 2]},
            ("layer ids without demand_NLE",),
        ),
        (
            {"demand_NLE": None, "top_k": 0, "routed_tokens_N": [4, 2]},
            ("demand_NLE is missing", "give both or neither"),
        ),
        ({"layer_ids_L": [1]}, ("2 increasing layer numbers", "[1]")),
        ({"layer_ids_L": [3, 3]}, ("2 increasing layer numbers", "[3, 3]")),
        ({"prompt_group_N": [0]}, ("prompt_group_N has 1 entries for 2 samples",)),
        ({"bundle_N": [0, -2]}, ("bundle_N[1] = -2",)),
    ],
)
def test_bad_windows_are_refused(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InstanceError) as caught:
        Window(**{**GOOD, **changes})
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_a_wrapped_product_does_not_hide_a_wrong_count() -> None:
    """4 x 2**62 is 0 in 64 bits, as the demand is."""
    with pytest.raises(InstanceError, match="routed tokens but only 2"):
        Window(
            length_N=[2],
            demand_NLE=np.zeros((1, 1, 4), dtype=np.int32),
            routed_tokens_N=[2**62],
            top_k=4,
        )


def test_sums_are_checked_beyond_32_bits() -> None:
    demand = np.full((1, 1, 4), 2**31 - 1, dtype=np.int32)
    window = Window(length_N=[2**31 - 1], demand_NLE=demand, top_k=4)
    assert window.routed_N.tolist() == [2**31 - 1]
