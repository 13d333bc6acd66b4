"""Registered tensors follow their experts; ids are looked up live."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import InstanceError
from rpopt.online.registration import ExpertRegistry
from rpopt.plans import Placement

E = 4


class Fused(torch.nn.Module):
    """Two fused weights, the slots of one on the second axis."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.up_EIH = torch.nn.Parameter(torch.randn(E, 3, 2, generator=generator))
        self.down_HEI = torch.nn.Parameter(torch.randn(2, E, 3, generator=generator))

    def forward(self, slot: int, x: torch.Tensor) -> torch.Tensor:
        return self.down_HEI[:, slot] @ torch.tanh(self.up_EIH[slot] @ x)

    def register(self, registry: ExpertRegistry) -> None:
        registry.add_fused(0, "up", self.up_EIH)
        registry.add_fused(0, "down", self.down_HEI, slot_axis=1)


class PerExpert(torch.nn.Module):
    """One linear layer per expert."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(E))

    def forward(self, slot: int, x: torch.Tensor) -> torch.Tensor:
        return self.experts[slot](x)

    def register(self, registry: ExpertRegistry) -> None:
        registry.add_modules(0, list(self.experts))


def registry(placement: Placement | None = None) -> ExpertRegistry:
    return ExpertRegistry(
        n_layers=1, n_experts=E, ep_size=1, ep_rank=0, placement=placement
    )


def train(
    build: Callable[[], Fused | PerExpert], orders: list[list[int]]
) -> list[torch.Tensor]:
    """Outputs of the logical experts after a step per order, changed before each."""
    model, experts = build(), registry()
    model.register(experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    experts.add_optimizer(optimizer)
    for step, order in enumerate(orders):
        experts.permute_local(0, order)
        optimizer.zero_grad()
        for expert in range(step % 3, E):  # not every expert is used in every step
            slot = int(experts.physical_ids(0, torch.tensor(expert)))
            model(slot, torch.tensor([1.0, 0.5 + expert])).square().sum().backward()
        optimizer.step()
    slots = experts.physical_ids(0, torch.arange(E)).tolist()
    return [model(slot, torch.tensor([1.0, -1.0])).detach() for slot in slots]


@pytest.mark.parametrize("build", [Fused, PerExpert])
@settings(deadline=None, max_examples=30)
@given(orders=st.lists(st.permutations(range(E)), min_size=1, max_size=5))
def test_training_does_not_notice_a_permutation(
    build: Callable[[], Fused | PerExpert], orders: list[list[int]]
) -> None:
    expected = train(build, [list(range(E))] * len(orders))
    found = train(build, orders)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("build", [Fused, PerExpert])
def test_gradients_masters_and_state_move_along(
    build: Callable[[], Fused | PerExpert],
) -> None:
    model, experts = build(), registry()
    model.register(experts)
    masters = {p: p.detach().double().requires_grad_() for p in model.parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=0.1)
    experts.add_optimizer(optimizer, masters=masters)
    for parameter, master in masters.items():
        master.grad = torch.rand_like(master)
        parameter.grad = torch.rand_like(parameter)
        parameter.main_grad = torch.rand_like(master)  # type: ignore[attr-defined]
    optimizer.step()
    before = held(experts)
    roles = {tensor.role for tensor in experts.slot_tensors(0)}
    assert roles == {"parameter", "master", "grad", "main_grad", "state"}
    experts.permute_local(0, [2, 0, 3, 1])
    after = held(experts)
    assert before.keys() == after.keys()
    for key, values in before.items():
        assert all(
            torch.equal(after[key][i], values[j]) for i, j in enumerate([2, 0, 3, 1])
        )
    assert experts.slots_LP.tolist() == [[2, 0, 3, 1]]


def held(experts: ExpertRegistry) -> dict[str, list[torch.Tensor]]:
    return {
        tensor.key: [
            value.clone() for i in range(E) if (value := tensor.read(i)) is not None
        ]
        for tensor in experts.slot_tensors(0)
    }


def test_an_expert_without_gradient_takes_that_along() -> None:
    model, experts = PerExpert(), registry()
    model.register(experts)
    optimizer = torch.optim.AdamW(model.parameters())
    experts.add_optimizer(optimizer)
    model(1, torch.ones(2)).sum().backward()
    optimizer.step()
    experts.permute_local(0, [1, 0, 2, 3])
    weights = [expert.weight for expert in model.experts]
    assert [weight.grad is not None for weight in weights] == [
        True,
        False,
        False,
        False,
    ]
    assert [bool(optimizer.state.get(w)) for w in weights] == [
        True,
        False,
        False,
        False,
    ]


def test_lookup_is_live_and_keeps_the_shape() -> None:
    experts = registry(Placement(slot_LE=np.array([[3, 2, 1, 0]]), num_ep_ranks=1))
    ids_TK = torch.tensor([[0, 1], [3, 2]], dtype=torch.int32)
    assert experts.physical_ids(0, ids_TK).tolist() == [[3, 2], [0, 1]]
    experts.set_slots(0, [1, 0, 3, 2])
    assert experts.physical_ids(0, ids_TK).tolist() == [[1, 0], [2, 3]]
    assert experts.placement.expert_of_slot_LE.tolist() == [[1, 0, 3, 2]]


def test_ranks_hold_consecutive_slots() -> None:
    experts = ExpertRegistry(n_layers=2, n_experts=E, ep_size=2, ep_rank=1)
    experts.set_slots(1, [3, 1, 0, 2])
    assert experts.local_experts(0) == [2, 3]
    assert experts.local_experts(1) == [0, 2]
    experts.permute_local(1, [1, 0])
    assert experts.slots_LP[1].tolist() == [3, 1, 2, 0]


def test_mistakes_are_refused() -> None:
    model, experts = Fused(), registry()
    model.register(experts)
    with pytest.raises(InstanceError, match="registered already"):
        experts.add_fused(0, "again", model.up_EIH)
    with pytest.raises(InstanceError, match="must hold the 4 local experts"):
        experts.add_fused(0, "wrong axis", torch.zeros(E, 3), slot_axis=1)
    with pytest.raises(InstanceError, match="no MoE layer 1"):
        experts.add_fused(1, "wrong layer", torch.zeros(E))
    with pytest.raises(InstanceError, match="3 expert modules"):
        experts.add_modules(0, [torch.nn.Linear(1, 1)] * 3)
    with pytest.raises(InstanceError, match="differ in parameter names or shapes"):
        experts.add_modules(0, [torch.nn.Linear(1, i + 1) for i in range(E)])
    with pytest.raises(InstanceError, match="no permutation"):
        experts.set_slots(0, [0, 0, 1, 2])
    with pytest.raises(InstanceError, match="cannot be spread equally"):
        ExpertRegistry(n_layers=1, n_experts=5, ep_size=2, ep_rank=0)


def test_state_that_cannot_be_cut_is_refused() -> None:
    model, experts = Fused(), registry()
    model.register(experts)
    optimizer = torch.optim.Adafactor(model.parameters())
    experts.add_optimizer(optimizer)
    model(0, torch.ones(2)).sum().backward()
    optimizer.step()
    with pytest.raises(InstanceError, match="cannot be cut into experts"):
        experts.slot_tensors(0)
