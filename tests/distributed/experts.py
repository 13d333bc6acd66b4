"""A small trained model whose experts may move: every kind of tensor there is."""

import hashlib

import torch

from rpopt.online.registration import ExpertRegistry
from rpopt.plans import Placement

L, E = 2, 8
Contents = dict[tuple[int | str, int, str], str]


class Experts(torch.nn.Module):
    """A fused layer with masters, a layer of modules, and a dense layer.

    Weights and gradients depend on the logical expert alone.
    """

    def __init__(
        self, ep_size: int, ep_rank: int, placement: Placement | None = None
    ) -> None:
        super().__init__()
        self.registry = ExpertRegistry(
            n_layers=L,
            n_experts=E,
            ep_size=ep_size,
            ep_rank=ep_rank,
            placement=placement,
        )
        fused_HM = torch.stack(
            [torch.arange(3.0) + 10 * e for e in self.local(0)], dim=1
        )
        self.fused = torch.nn.Parameter(fused_HM.bfloat16())
        self.master = [self.fused.detach().float().requires_grad_()]  # no parameter
        self.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in self.local(1))
        for expert, module in zip(self.local(1), self.experts, strict=True):
            torch.nn.init.constant_(module.weight, expert)
            torch.nn.init.constant_(module.bias, -expert)
        self.dense = torch.nn.Linear(2, 3)
        torch.nn.init.constant_(self.dense.weight, 0.5)
        torch.nn.init.constant_(self.dense.bias, -0.5)
        self.register_buffer("bias_E", torch.arange(float(E)))
        self.registry.add_fused(0, "fused", self.fused, slot_axis=1)
        self.registry.add_modules(1, list(self.experts))
        self.optimizer = torch.optim.AdamW(
            [*self.master, *self.experts.parameters(), *self.dense.parameters()], lr=0.1
        )
        self.registry.add_optimizer(
            self.optimizer, masters={self.fused: self.master[0]}
        )

    def local(self, layer: int) -> list[int]:
        return self.registry.local_experts(layer)

    def step(self, number: int) -> None:
        """One AdamW step; each expert of layer 1 sits out some of the steps."""
        self.optimizer.zero_grad()
        grads = [e + number + torch.arange(3.0) for e in self.local(0)]
        self.master[0].grad = torch.stack(grads, dim=1)
        for expert, module in zip(self.local(1), self.experts, strict=True):
            for parameter in module.parameters():
                if number == 0 or (expert + number) % 3:
                    parameter.grad = torch.full_like(parameter, expert + number)
        for parameter in self.dense.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 + number)
        self.optimizer.step()
        self.fused.detach().copy_(self.master[0].detach())
        self.bias_E += 1.0

    def contents(self) -> Contents:
        """Digest of all that each logical expert of this rank has, and of the rest."""
        found: Contents = {}
        for layer in range(L):
            for tensor in self.registry.slot_tensors(layer):
                for slot, expert in enumerate(self.local(layer)):
                    found[layer, expert, tensor.key] = digest(tensor.read(slot))
            for tensor in self.registry.shared_tensors(layer):
                found[layer, -1, tensor.key] = digest(tensor.read(0))
        for tensor in self.registry.dense_tensors(self):
            found["dense", -1, tensor.key] = digest(tensor.read(0))
        return found


def digest(value: torch.Tensor | None) -> str:
    data = b"none" if value is None else value.double().numpy().tobytes()
    return hashlib.sha256(data).hexdigest()
