"""Experts change places inside real models; what the models compute does not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rpopt.errors import InstanceError, MismatchError
from rpopt.online.registration import ExpertRegistry
from rpopt.plans import Placement
from rpopt.stacks.experts import (
    apply_local,
    register_megatron,
    register_torchtitan,
    register_transformers,
)
from tests.stacks.packages import real

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = 8
MODELS: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
        "decoder_sparse_step": 1,
    },
    "Mixtral": {
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "intermediate_size": 16,
    },
    "Olmoe": {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "intermediate_size": 16,
    },
    "DeepseekV3": {  # the first of three layers is dense; four groups, two per token
        "num_hidden_layers": 3,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "intermediate_size": 32,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "head_dim": 8,
    },
    "GptOss": {
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "intermediate_size": 16,
        "head_dim": 8,
    },
}


def model_of(name: str, kernels: str = "eager") -> nn.Module:
    transformers = real("transformers")
    config = getattr(transformers, f"{name}Config")(**(SIZES | MODELS[name]))
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.set_experts_implementation(kernels)
    return model.double().eval() if kernels == "eager" else model.eval()


def placements(seed: int, num_layers: int = 2) -> Placement:
    rng = np.random.default_rng(seed)
    slots = [rng.permutation(EXPERTS) for _ in range(num_layers)]
    return Placement(slot_LE=np.array(slots), num_ep_ranks=1)


def registry_of(num_layers: int = 2) -> ExpertRegistry:
    return ExpertRegistry(n_layers=num_layers, n_experts=EXPERTS, ep_size=1, ep_rank=0)


def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(1))


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens()).logits


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    logits = model(tokens()).logits
    loss = nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("name", MODELS)
def test_a_real_model_computes_the_same_and_keeps_training_alike(name: str) -> None:
    plain, moved = model_of(name), model_of(name)
    registry = registry_of()
    register_transformers(registry, moved)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (plain, moved)]
    registry.add_optimizer(optimizers[1])
    for seed in range(3):  # the first move finds no optimizer state, the next ones do
        apply_local(registry, placements(seed))
        assert registry.placement == placements(seed)
        assert torch.allclose(logits_of(plain), logits_of(moved), rtol=0, atol=1e-9)
        for model, optimizer in zip((plain, moved), optimizers, strict=True):
            train(model, optimizer)
        assert torch.allclose(logits_of(plain), logits_of(moved), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_without_the_map_the_model_would_compute_something_else(name: str) -> None:
    plain, moved = model_of(name), model_of(name)
    registry = registry_of()
    for handle in register_transformers(registry, moved):
        handle.remove()
    apply_local(registry, placements(0))
    assert not torch.allclose(logits_of(plain), logits_of(moved), rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_the_grouped_kernels_compute_the_same(name: str) -> None:
    plain, moved = model_of(name, "grouped_mm"), model_of(name, "grouped_mm")
    registry = registry_of()
    register_transformers(registry, moved)
    apply_local(registry, placements(0))
    assert torch.allclose(logits_of(plain), logits_of(moved), rtol=1e-4, atol=1e-4)


def test_dense_layers_do_not_count() -> None:
    with pytest.raises(MismatchError, match="2 MoE layers .* registry 3"):
        register_transformers(registry_of(3), model_of("DeepseekV3"))


class TorchtitanExperts(nn.Module):
    """Parameters and call of torchtitan b5bcd76c's `GroupedExperts`."""

    def __init__(self) -> None:
        super().__init__()
        self.w1_EFD = nn.Parameter(torch.randn(EXPERTS, 6, 4))
        self.w2_EDF = nn.Parameter(torch.randn(EXPERTS, 4, 6))
        self.w3_EFD = nn.Parameter(torch.randn(EXPERTS, 6, 4))

    def forward(self, x_RD: torch.Tensor, count_E: torch.Tensor) -> torch.Tensor:
        parts = x_RD.split(count_E.tolist())
        outputs = [
            (nn.functional.silu(x @ w1.T) * (x @ w3.T)) @ w2.T
            for x, w1, w2, w3 in zip(
                parts, self.w1_EFD, self.w2_EDF, self.w3_EFD, strict=True
            )
        ]
        return torch.cat(outputs)


class TorchtitanRouted(nn.Module):
    """Call of torchtitan b5bcd76c's `RoutedExperts`, with a local dispatch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner_experts = TorchtitanExperts()

    def forward(
        self,
        x: torch.Tensor,
        scores: torch.Tensor,
        ids: torch.Tensor,
        count: torch.Tensor,
    ) -> torch.Tensor:
        states = x.flatten(0, 1)
        order = torch.argsort(ids.flatten(), stable=True)
        token = order // ids.shape[-1]
        routed = self.inner_experts(states[token], count)
        weighted = routed * scores.flatten()[order, None]
        return torch.zeros_like(states).index_add(0, token, weighted).view_as(x)


def test_torchtitan_experts() -> None:
    torch.manual_seed(0)
    routed = TorchtitanRouted().double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    scores, ids = torch.rand(2, 5, EXPERTS, dtype=torch.float64).topk(2)
    count = torch.bincount(ids.flatten(), minlength=EXPERTS)
    before = routed(x, scores, ids, count)
    registry = registry_of(1)
    register_torchtitan(registry, nn.ModuleList([routed]))
    apply_local(registry, placements(0, 1))
    assert torch.allclose(before, routed(x, scores, ids, count), rtol=0, atol=1e-12)


class Linear(nn.Module):
    """Parameters of Transformer Engine's grouped linear: weight0, weight1, ..."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        for slot in range(EXPERTS):
            weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.float64))
            self.register_parameter(f"weight{slot}", weight)


class Grouped(nn.Module):
    """Parameter names of Megatron-LM d98e8a64's `TEGroupedMLP`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = Linear(4, 6), Linear(6, 4)

    def expert(self, slot: int, x: torch.Tensor) -> torch.Tensor:
        first = getattr(self.linear_fc1, f"weight{slot}")
        second = getattr(self.linear_fc2, f"weight{slot}")
        return torch.relu(x @ first.T) @ second.T


class Sequential(nn.Module):
    """Parameter names of Megatron-LM d98e8a64's `SequentialMLP`."""

    def __init__(self) -> None:
        super().__init__()
        mlps = [
            nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(8)
        ]
        self.local_experts = nn.ModuleList(mlps).double()

    def expert(self, slot: int, x: torch.Tensor) -> torch.Tensor:
        return self.local_experts[slot](x)


class Router(nn.Module):
    """Output of Megatron-LM d98e8a64's `TopKRouter`: probabilities and routing map."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, 4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(x @ self.weight.T, -1)
        chosen = torch.zeros_like(probabilities, dtype=torch.bool)
        chosen.scatter_(1, probabilities.topk(2).indices, True)
        return probabilities * chosen, chosen


class MoELayer(nn.Module):
    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.router, self.experts = Router(), experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        probabilities, chosen = self.router(x)
        out = torch.zeros_like(x)
        for slot in range(EXPERTS):
            token = chosen[:, slot].nonzero()[:, 0]
            weight = probabilities[token, slot, None]
            out = out.index_add(0, token, self.experts.expert(slot, x[token]) * weight)
        return out


@pytest.mark.parametrize("kind", [Grouped, Sequential])
def test_megatron_experts(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    moe = MoELayer(kind())
    x = torch.randn(9, 4, dtype=torch.float64)
    before = moe(x)
    optimizer = torch.optim.AdamW(moe.parameters(), lr=0.0)
    before.sum().backward()
    optimizer.step()
    registry = registry_of(1)
    register_megatron(registry, [moe])
    registry.add_optimizer(optimizer)
    apply_local(registry, placements(0, 1))
    assert torch.allclose(before, moe(x), rtol=0, atol=1e-12)


def test_megatron_experts_in_one_matrix_are_refused() -> None:
    moe = MoELayer(nn.Module())
    with pytest.raises(InstanceError, match="one matrix"):
        register_megatron(registry_of(1), [moe])
