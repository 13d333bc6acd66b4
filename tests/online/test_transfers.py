"""Transfers: as few as possible, balanced at every moment, no conflicts in a round."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import InstanceError
from rpopt.online.transfers import after, cycles, rounds
from rpopt.plans import Placement


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Placement, Placement]:
    ranks, each = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    layers = draw(st.integers(1, 3))
    row = st.permutations(range(ranks * each))
    table = st.lists(row, min_size=layers, max_size=layers)
    before, target = (
        Placement(slot_LE=np.array(draw(table)), num_ep_ranks=ranks) for _ in range(2)
    )
    return before, target


@settings(deadline=None)
@given(pair=pairs())
def test_the_target_is_reached_by_the_fewest_transfers(
    pair: tuple[Placement, Placement],
) -> None:
    current, target = pair
    schedule = rounds(cycles(current, target))
    transfers = [transfer for each in schedule for transfer in each]
    reached = after(current, transfers)
    assert np.array_equal(reached.rank_LE, target.rank_LE)
    assert len(transfers) == target.num_moved(current).sum()
    stays = current.rank_LE == target.rank_LE
    assert np.array_equal(reached.slot_LE[stays], current.slot_LE[stays])


@settings(deadline=None)
@given(pair=pairs())
def test_every_round_is_balanced_and_free_of_conflicts(
    pair: tuple[Placement, Placement],
) -> None:
    current, target = pair
    all_cycles = cycles(current, target)
    busiest = Counter(t.source for cycle in all_cycles for t in cycle)
    schedule = rounds(all_cycles)
    for each in schedule:
        sources, targets = [t.source for t in each], [t.target for t in each]
        assert len(set(sources)) == len(sources)
        assert sorted(sources) == sorted(targets)
        freed = {(t.layer, t.from_slot) for t in each}
        assert {(t.layer, t.to_slot) for t in each} == freed
        current = after(current, each)  # a permutation after every round
    assert len(schedule) >= max(busiest.values(), default=0)


def test_two_experts_that_change_places_are_one_swap() -> None:
    current = Placement.identity(1, 4, 2)
    target = Placement(slot_LE=np.array([[2, 1, 0, 3]]), num_ep_ranks=2)
    ((first, second),) = cycles(current, target)
    assert (first.expert, first.from_slot, first.to_slot) == (0, 0, 2)
    assert (second.expert, second.from_slot, second.to_slot) == (2, 2, 0)


def test_another_slot_of_the_same_rank_is_no_move() -> None:
    target = Placement(slot_LE=np.array([[1, 0, 3, 2]]), num_ep_ranks=2)
    assert cycles(Placement.identity(1, 4, 2), target) == []


def test_placements_of_other_shapes_are_refused() -> None:
    with pytest.raises(InstanceError, match="cannot be compared"):
        cycles(Placement.identity(1, 4, 2), Placement.identity(1, 4, 4))
