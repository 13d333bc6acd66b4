"""Topologies: which ranks share an expert all-to-all, and what does not divide."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpopt.errors import InstanceError
from rpopt.topology import Topology


@pytest.mark.parametrize(
    ("sizes", "shards"),
    [
        ({"dp": 4, "ep": 2}, [0, 0, 1, 1]),
        ({"dp": 4, "ep": 4}, [0, 0, 0, 0]),
        ({"dp": 4, "ep": 4, "tp": 2}, [0, 0, 1, 1]),
        ({"dp": 4, "ep": 2, "etp": 2, "cp": 2}, [0, 0, 1, 1]),
        ({"dp": 3, "ep": 1}, [0, 1, 2]),
        ({"dp": 2, "ep": 2, "tp": 2, "cp": 4}, [0, 1]),
    ],
)
def test_consecutive_ranks_share_a_shard(
    sizes: dict[str, int], shards: list[int]
) -> None:
    assert Topology(**sizes).rank_shards_D.tolist() == shards


@given(*(st.sampled_from((1, 2, 3, 4, 8)) for _ in range(5)))
def test_shards_follow_from_the_rank_order(
    tp: int, cp: int, dp: int, ep: int, etp: int
) -> None:
    """Ranks of one EDP block: dense = tp + TP (cp + CP dp), block = dense // ETP EP."""
    sizes = {"dp": dp, "ep": ep, "tp": tp, "cp": cp, "etp": etp}
    dense, expert = tp * cp, etp * ep
    if max(dense, expert) % min(dense, expert) or (dense * dp) % expert:
        with pytest.raises(InstanceError, match="divide|multiple"):
            Topology(**sizes)
        return
    topology = Topology(**sizes)
    blocks = [
        {(d * dense + offset) // expert for offset in range(dense)} for d in range(dp)
    ]
    assert all(len(b) == topology.num_slices for b in blocks)
    meet = [[bool(a & b) for b in blocks] for a in blocks]
    shard_D = topology.rank_shards_D
    assert meet == (shard_D[:, None] == shard_D).tolist()
    assert topology.num_shards * topology.shard_size == dp


def test_slices_are_a_lower_estimate_and_say_so() -> None:
    topology = Topology(dp=2, ep=2, tp=2, cp=4)
    assert (topology.num_slices, topology.shard_size) == (4, 1)
    (note,) = topology.notes()
    assert "4 EP groups" in note
    assert "lower estimate" in note
    assert Topology(dp=2, ep=2).notes() == ()


def test_an_explicit_map_is_kept() -> None:
    topology = Topology(dp=4, ep=2, shard_of_rank_D=[1, 0, 1, 0])
    assert topology.rank_shards_D.tolist() == [1, 0, 1, 0]
    assert topology != Topology(dp=4, ep=2)
    assert Topology(dp=4, ep=2, shard_of_rank_D=[0, 0, 1, 1]) == Topology(dp=4, ep=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dp": 0}, ("dp = 0", "at least 1")),
        ({"ep": -1}, ("ep = -1",)),
        ({"dp": 10**20}, ("dp = 100000000000000000000 exceeds 1048576",)),
        ({"tp": 1.5}, ("tp = 1.5",)),
        ({"dp": True}, ("dp = True",)),
        ({"ep": 3}, ("dp = 4", "3 ranks", "3 / 1")),
        ({"ep": 8}, ("dp = 4", "8 ranks")),
        ({"ep": 2, "tp": 3}, ("etp x ep = 1 x 2 = 2", "tp x cp = 3 x 1 = 3", "divide")),
        ({"coupling": "never"}, ("'never'", "'step' or 'row'")),
        ({"shard_of_rank_D": [0, 1]}, ("2 entries for dp = 4",)),
        ({"shard_of_rank_D": [0, 0, 0, 1]}, ("[3, 1] ranks", "2 shards of 2 ranks")),
        ({"shard_of_rank_D": [0, 0, 2, 2]}, ("[2, 0, 2]", "2 shards of 2 ranks")),
        ({"shard_of_rank_D": [0, 0, 1, -1]}, ("shard_of_rank_D[3] = -1",)),
    ],
)
def test_bad_topologies_are_refused(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InstanceError) as caught:
        Topology(**{"dp": 4, "ep": 2, **changes})
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_experts_must_divide() -> None:
    topology = Topology(dp=4, ep=4)
    assert topology.experts_per_rank(32) == 8
    with pytest.raises(InstanceError, match="30 experts .* ep = 4; choose an ep"):
        topology.experts_per_rank(30)


def test_numpy_sizes_are_fine() -> None:
    assert Topology(dp=np.int64(4), ep=np.int32(2)) == Topology(dp=4, ep=2)
