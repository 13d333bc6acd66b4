"""Experts move between real processes, with all that belongs to them."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rpopt.errors import CommunicationError, InstanceError, MismatchError
from rpopt.online.materialise import materialise
from rpopt.plans import Placement
from tests.distributed.experts import E, Experts, L
from tests.distributed.ranks import die, results_of, run_ranks

ROOM = 2**20
pytestmark = pytest.mark.dist


class Moving(Experts):
    """The experts of one rank, with the groups that they move in."""

    def __init__(self, ep_size: int) -> None:
        super().__init__(ep_size, dist.get_rank() % ep_size)
        groups = [
            dist.new_group(list(range(start, start + ep_size)))
            for start in range(0, dist.get_world_size(), ep_size)
        ]
        self.group = groups[dist.get_rank() // ep_size]
        self.step(0)

    def move(self, target: Placement, room: int = ROOM, timeout_s: float = 30, **more):  # noqa: ANN201
        return materialise(
            self.registry,
            target,
            group=self.group,
            memory_limit_bytes=room,
            timeout_s=timeout_s,
            **more,
        )


def placements(seed: int, count: int, ep_size: int) -> list[Placement]:
    rng = np.random.default_rng(seed)
    tables = [np.argsort(rng.random((L, E)), axis=1) for _ in range(count)]
    return [Placement(slot_LE=table, num_ep_ranks=ep_size) for table in tables]


def train_and_move(ep_size: int, room: int) -> tuple[dict, dict, list[int]]:
    still, moving = Moving(ep_size), Moving(ep_size)
    sent = []
    for number, target in enumerate(placements(1, 4, ep_size), start=1):
        report = moving.move(target, room)
        assert np.array_equal(moving.registry.placement.rank_LE, target.rank_LE)
        assert report.staged_bytes <= room
        sent.append(report.num_exchanges)
        still.step(number)
        moving.step(number)
    return still.contents(), moving.contents(), sent


@pytest.mark.parametrize(("world", "ep_size"), [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_training_does_not_notice_that_experts_move(world: int, ep_size: int) -> None:
    results = results_of(train_and_move, world, ep_size, ROOM)
    for start in range(0, world, ep_size):  # each replica of the experts
        replica = results[start : start + ep_size]
        still = {k: v for each, _, _ in replica for k, v in each.items()}
        moved = {k: v for _, each, _ in replica for k, v in each.items()}
        assert moved == still
    assert all(sent == results[0][2] for _, _, sent in results)
    assert any(results[0][2]) == (ep_size > 1)


def test_a_tight_memory_limit_takes_more_exchanges() -> None:
    expert_bytes = 3 * (2 + 4 * 4)  # bfloat16; master, its gradient, two moments
    expert_bytes = max(expert_bytes, 6 * 4 * 4 + 2 * 4)  # fp32 and two step counts
    (_, _, roomy), _ = results_of(train_and_move, 2, 2, ROOM)
    (_, _, tight), _ = results_of(train_and_move, 2, 2, 2 * expert_bytes)
    assert sum(tight) > sum(roomy)


def refused(kind: str) -> tuple[bool, list[list[int]]]:
    experts, (target, other) = Moving(2), placements(2, 2, 2)
    before = experts.contents()
    if kind == "room":
        with pytest.raises(InstanceError, match="one expert out and one in"):
            experts.move(target, room=10)
    elif kind == "target":
        with pytest.raises(MismatchError, match="differ in their target"):
            experts.move(other if dist.get_rank() else target)
    elif kind == "shape":
        wrong = Placement.identity(L, 2 * E, 2)
        with pytest.raises(MismatchError, match="EP rank 1: .*cannot be compared"):
            experts.move(wrong if dist.get_rank() else target)
    elif kind == "tensors":
        if dist.get_rank():
            experts.registry.add_fused(0, "extra", torch.zeros(E // 2))
        with pytest.raises(MismatchError, match="only some EP ranks have"):
            experts.move(target)
        return True, []
    return experts.contents() == before, experts.registry.slots_LP.tolist()


@pytest.mark.parametrize("kind", ["room", "target", "shape", "tensors"])
def test_a_refusal_reaches_all_ranks_and_moves_nothing(kind: str) -> None:
    for unchanged, slots_LP in results_of(refused, 2, kind):
        assert unchanged
        assert slots_LP in ([], [list(range(E))] * L)


def lose_a_rank(when: int) -> None:
    experts = Moving(dist.get_world_size())
    (target,) = placements(3, 1, dist.get_world_size())

    def maybe_die(exchange: int) -> None:
        if dist.get_rank() == 1 and exchange == when:
            die()

    if dist.get_rank() == 1 and when < 0:
        die()
    experts.move(target, room=2 * 104, timeout_s=5, on_exchange=maybe_die)


@pytest.mark.parametrize("when", [-1, 0, 2])
def test_a_lost_rank_stops_the_others_with_a_clear_error(when: int) -> None:
    results = run_ranks(lose_a_rank, 4, when, lost=(1,))
    for rank in (0, 2, 3):
        assert isinstance(results[rank], CommunicationError), results[rank]
        assert "resume from the last checkpoint" in str(results[rank])
