"""Experts change places inside the real modules of torchtitan and Megatron-Core."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from rpopt.online.registration import ExpertRegistry
from rpopt.plans import Placement
from rpopt.stacks.experts import apply_local, register_megatron, register_torchtitan
from tests.stacks.packages import real

EXPERTS = 8
TARGET = Placement(
    slot_LE=np.random.default_rng(0).permutation(EXPERTS)[None], num_ep_ranks=1
)


def registry_of_one_layer() -> ExpertRegistry:
    return ExpertRegistry(n_layers=1, n_experts=EXPERTS, ep_size=1, ep_rank=0)


def spread(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def test_torchtitan_routed_experts() -> None:
    moe = real("torchtitan.models.common.moe")
    dispatcher = real("torchtitan.models.common.token_dispatcher")
    config = moe.RoutedExperts.Config(
        inner_experts=moe.GroupedExperts.Config(
            dim=16, hidden_dim=32, num_experts=EXPERTS
        ),
        token_dispatcher=dispatcher.LocalTokenDispatcher.Config(
            num_experts=EXPERTS, top_k=2
        ),
    )
    routed = spread(config.build())
    x = torch.randn(2, 5, 16)
    scores, ids = torch.rand(2, 5, EXPERTS).topk(2)
    count = torch.bincount(ids.flatten(), minlength=EXPERTS)
    before = routed(x, scores, ids, count)
    registry = registry_of_one_layer()
    handles = register_torchtitan(registry, nn.ModuleList([routed]))
    apply_local(registry, TARGET)
    assert torch.allclose(before, routed(x, scores, ids, count), rtol=1e-2, atol=1e-2)
    for handle in handles:
        handle.remove()
    assert not torch.allclose(before, routed(x, scores, ids, count), rtol=0, atol=0.1)


@pytest.fixture
def megatron_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    state = real("megatron.core.parallel_state")
    specs = real("megatron.core.models.gpt.moe_module_specs")
    build = real("megatron.core.transformer.spec_utils").build_module
    config_type = real("megatron.core.transformer.transformer_config").TransformerConfig
    # Without CUDA and Transformer Engine two names have to be given.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    utils = real("megatron.core.transformer.moe.moe_utils")
    monkeypatch.setattr(utils, "te_general_gemm", None, raising=False)
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    state.initialize_model_parallel()
    config = config_type(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=4,
        num_moe_experts=EXPERTS,
        moe_router_topk=2,
        moe_ffn_hidden_size=32,
        use_cpu_initialization=True,
        moe_token_dispatcher_type="allgather",
        add_bias_linear=False,
        gated_linear_unit=True,
        moe_router_load_balancing_type="none",
    )
    spec = specs.get_moe_module_spec(
        use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False
    )
    yield spread(build(spec, config=config))
    state.destroy_model_parallel()
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_megatron_core_moe_layer(megatron_layer: Any) -> None:
    x = torch.randn(6, 1, 16)
    before = megatron_layer(x)[0]
    registry = registry_of_one_layer()
    handles = register_megatron(registry, [megatron_layer])
    apply_local(registry, TARGET)
    assert torch.allclose(before, megatron_layer(x)[0], rtol=1e-5, atol=1e-4)
    for handle in handles:
        handle.remove()
    assert not torch.allclose(before, megatron_layer(x)[0], rtol=0, atol=0.1)
