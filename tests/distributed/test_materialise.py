"""Experts move between real processes, with all that belongs to them."""

import hashlib

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rpopt.errors import CommunicationError, InstanceError, MismatchError
from rpopt.online.materialise import materialise
from rpopt.online.registration import ExpertRegistry
from rpopt.plans import Placement
from tests.distributed.ranks import die, results_of, run_ranks

L, E = 2, 8
ROOM = 2**20
pytestmark = pytest.mark.dist


class Experts:
    """The experts of one EP rank: a fused layer with masters, a layer of modules."""

    def __init__(self, ep_size: int) -> None:
        rank, each = dist.get_rank() % ep_size, E // ep_size
        self.groups = [
            dist.new_group(list(range(start, start + ep_size)))
            for start in range(0, dist.get_world_size(), ep_size)
        ]
        self.group = self.groups[dist.get_rank() // ep_size]
        self.registry = ExpertRegistry(
            n_layers=L, n_experts=E, ep_size=ep_size, ep_rank=rank
        )
        own = range(rank * each, (rank + 1) * each)
        fused_HM = torch.stack([torch.arange(3.0) + 10 * e for e in own], dim=1)
        self.fused = torch.nn.Parameter(fused_HM.bfloat16())
        self.master = self.fused.detach().float().requires_grad_()
        self.modules = [torch.nn.Linear(2, 2) for _ in own]
        for expert, module in zip(own, self.modules, strict=True):
            torch.nn.init.constant_(module.weight, expert)
            torch.nn.init.constant_(module.bias, -expert)
        self.registry.add_fused(0, "fused", self.fused, slot_axis=1)
        self.registry.add_modules(1, self.modules)
        parameters = [p for module in self.modules for p in module.parameters()]
        self.optimizer = torch.optim.AdamW([self.master, *parameters], lr=0.1)
        self.registry.add_optimizer(self.optimizer, masters={self.fused: self.master})
        self.step(0)

    def step(self, number: int) -> None:
        """One AdamW step with gradients that depend on the logical expert; each
        expert of layer 1 sits out some of the steps."""
        self.optimizer.zero_grad()
        grads = [e + number + torch.arange(3.0) for e in self.local(0)]
        self.master.grad = torch.stack(grads, dim=1)
        for expert, module in zip(self.local(1), self.modules, strict=True):
            for parameter in module.parameters():
                if number == 0 or (expert + number) % 3:
                    parameter.grad = torch.full_like(parameter, expert + number)
        self.optimizer.step()
        self.fused.detach().copy_(self.master.detach())

    def local(self, layer: int) -> list[int]:
        return self.registry.local_experts(layer)

    def move(self, target: Placement, room: int = ROOM, timeout_s: float = 30, **more):  # noqa: ANN201
        return materialise(
            self.registry,
            target,
            group=self.group,
            memory_limit_bytes=room,
            timeout_s=timeout_s,
            **more,
        )

    def contents(self) -> dict[tuple[int, int, str], str]:
        """Digest of all that each logical expert of this rank has."""
        return {
            (layer, expert, tensor.key): digest(tensor.read(slot))
            for layer in range(L)
            for tensor in self.registry.slot_tensors(layer)
            for slot, expert in enumerate(self.local(layer))
        }


def digest(value: torch.Tensor | None) -> str:
    data = b"none" if value is None else value.double().numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


def placements(seed: int, count: int, ep_size: int) -> list[Placement]:
    rng = np.random.default_rng(seed)
    tables = [np.argsort(rng.random((L, E)), axis=1) for _ in range(count)]
    return [Placement(slot_LE=table, num_ep_ranks=ep_size) for table in tables]


def train_and_move(ep_size: int, room: int) -> tuple[dict, dict, list[int]]:
    still, moving = Experts(ep_size), Experts(ep_size)
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
    experts, (target, other) = Experts(2), placements(2, 2, 2)
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
    experts = Experts(dist.get_world_size())
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
