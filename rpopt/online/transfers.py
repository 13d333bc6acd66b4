"""Which expert goes where, and in which round: pure arithmetic, the same on all ranks.

Every EP rank holds E / P experts before and after, so a layer sends as many experts
away from each rank as it brings: the transfers fall apart into cycles of ranks. An
expert that arrives takes the slot that its cycle just freed, so experts that stay never
move and nothing is ever kept waiting for a slot.

Axis letters: L MoE layers, E experts, P EP ranks.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rpopt.errors import InstanceError
from rpopt.plans import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One expert of one layer that changes its EP rank; slots are physical."""

    layer: int
    expert: int
    source: int
    target: int
    from_slot: int
    to_slot: int


Cycle = tuple[Transfer, ...]


def cycles(current: Placement, target: Placement) -> list[Cycle]:
    """Return the fewest transfers that bring every expert to its target EP rank.

    Swaps between two ranks come first, then longer cycles, layer by layer.

    Raises
    ------
    InstanceError
        When the placements differ in layers, experts or EP ranks.
    """
    moved_L = target.num_moved(current)
    found: list[Cycle] = []
    for layer in np.flatnonzero(moved_L).tolist():
        waiting = _by_ranks(current, target, layer)
        while waiting:
            found.append(_take(waiting, _shortest_loop(waiting), layer, current))
    return found


def rounds(cycles: Iterable[Cycle]) -> list[list[Transfer]]:
    """Return rounds in which no rank sends or receives more than one expert.

    Longest cycles first, each into the first round where all its ranks are free.
    """
    busy: list[set[int]] = []
    schedule: list[list[Transfer]] = []
    for cycle in sorted(cycles, key=len, reverse=True):
        ranks = {transfer.source for transfer in cycle}
        index = next((i for i, b in enumerate(busy) if not b & ranks), len(busy))
        if index == len(busy):
            busy.append(set())
            schedule.append([])
        busy[index] |= ranks
        schedule[index] += cycle
    return schedule


def after(current: Placement, transfers: Sequence[Transfer]) -> Placement:
    """Return the placement that the transfers lead to."""
    slot_LE = current.slot_LE.copy()
    for transfer in transfers:
        slot_LE[transfer.layer, transfer.expert] = transfer.to_slot
    return Placement(slot_LE=slot_LE, num_ep_ranks=current.num_ep_ranks)


_Waiting = dict[int, dict[int, list[int]]]  # source rank -> target rank -> experts


def _by_ranks(current: Placement, target: Placement, layer: int) -> _Waiting:
    waiting: _Waiting = defaultdict(dict)
    source_E, target_E = current.rank_LE[layer], target.rank_LE[layer]
    for expert in np.flatnonzero(source_E != target_E).tolist():
        source, to = int(source_E[expert]), int(target_E[expert])
        waiting[source].setdefault(to, []).append(expert)
    return dict(waiting)


def _shortest_loop(waiting: _Waiting) -> list[int]:
    """Return ranks a, b, ... such that a sends to b, b to the next, the last to a."""
    best: list[int] = []
    for first in sorted(waiting):
        loop = _loop_through(first, waiting)
        if not best or len(loop) < len(best):
            best = loop
        if len(best) == 2:
            break
    return best


def _loop_through(first: int, waiting: _Waiting) -> list[int]:
    """Return a shortest loop through a rank, by breadth-first search."""
    came_from: dict[int, int] = {}
    frontier = [first]
    while frontier:
        reached = []
        for rank in frontier:
            for to in sorted(waiting[rank]):
                if to == first:
                    loop = [rank]
                    while loop[-1] != first:
                        loop.append(came_from[loop[-1]])
                    return loop[::-1]
                if to not in came_from:
                    came_from[to] = rank
                    reached.append(to)
        frontier = reached
    raise InstanceError(f"EP rank {first} gives away experts and gets none back")


def _take(waiting: _Waiting, loop: list[int], layer: int, current: Placement) -> Cycle:
    """Remove one expert per edge of the loop; each takes the slot freed at its end."""
    experts = []
    for source, to in zip(loop, loop[1:] + loop[:1], strict=True):
        experts.append(waiting[source][to].pop(0))
        if not waiting[source][to]:
            del waiting[source][to]
        if not waiting[source]:
            del waiting[source]
    slots = [int(current.slot_LE[layer, expert]) for expert in experts]
    ends = zip(loop[1:] + loop[:1], slots[1:] + slots[:1], strict=True)
    return tuple(
        Transfer(
            layer=layer,
            expert=expert,
            source=source,
            target=to,
            from_slot=slot,
            to_slot=to_slot,
        )
        for expert, source, slot, (to, to_slot) in zip(
            experts, loop, slots, ends, strict=True
        )
    )
