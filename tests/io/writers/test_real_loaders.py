"""The packages' own code reads what was written.

SGLang's loader runs as it is; what it asks of a running server (device, EP ranks, the
model's class) comes from stand-ins, as those modules need a GPU stack to import. For
vllm-ascend, which is on no index, the loader was written again from its source.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rpopt.io.model_config import RoutedModel
from rpopt.io.writers import deepseek, sglang, vllm, vllm_ascend
from rpopt.plans import Placement
from tests.io.writers.cases import MODEL, PLACEMENT, placement_of
from tests.stacks.packages import run_as_module, source

BIG = RoutedModel(num_layers=8, moe_layers=tuple(range(3, 8)), num_experts=64, top_k=8)
RNG = np.random.default_rng(0)
BIG_PLACEMENT = Placement(
    slot_LE=[RNG.permutation(64) for _ in BIG.moe_layers], num_ep_ranks=8
)
CASES = pytest.mark.parametrize(
    ("model", "placement"), [(MODEL, PLACEMENT), (BIG, BIG_PLACEMENT)]
)


class ModelClass:
    """The part of SGLang's model classes that the loader asks."""

    @staticmethod
    def get_model_config_for_expert_location(config: RoutedModel) -> Any:
        return SimpleNamespace(
            num_layers=config.num_layers,
            num_logical_experts=config.num_experts,
            num_groups=None,
        )


def load_in_sglang(path: Path, model: RoutedModel, ep_size: int, rank: int) -> Any:
    """What an EP rank of a server started with `--init-expert-location` holds."""
    text = source("sglang", "srt/eplb/expert_location.py")
    moe = SimpleNamespace(
        init_expert_location=str(path),
        ep_num_redundant_experts=0,
        ep_dispatch_algorithm="static",
        ep_join_mode=None,
        moe_a2a_backend="deepep",
    )
    parallel = SimpleNamespace(
        ep_size=ep_size, tp_size=ep_size, nnodes=1, elastic_ep_initial_size=None
    )
    modules: dict[str, dict[str, Any]] = {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.runtime_context": {
            "get_device": lambda: SimpleNamespace(device="cpu"),
            "get_exec": lambda: SimpleNamespace(moe=moe),
            "get_parallel": lambda: parallel,
            "get_resources": lambda: None,
        },
        "sglang.srt.elastic_ep": {},
        "sglang.srt.elastic_ep.elastic_ep": {
            "elastic_expanded_world_enabled": lambda: False
        },
        "sglang.srt.model_loader": {
            "get_model_architecture": lambda _: (ModelClass, "")
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, content in modules.items():
            module = ModuleType(name)
            module.__dict__.update(content)
            patch.setitem(sys.modules, name, module)
        loader = run_as_module(text, "expert_location", patch)
        return loader.compute_initial_expert_location_metadata(
            SimpleNamespace(hf_config=model), rank
        )


@CASES
def test_sglang_loads_the_map(
    model: RoutedModel, placement: Placement, tmp_path: Path
) -> None:
    path, ep_size = tmp_path / "map.json", placement.num_ep_ranks
    sglang.write_map(path, placement, model, ep_size=ep_size)
    for rank in range(ep_size):
        found = load_in_sglang(path, model, ep_size, rank)
        assert found.num_layers == model.num_layers
        assert found.num_physical_experts == found.num_logical_experts
        assert found.num_local_physical_experts == model.num_experts // ep_size
        slot_LE = found.logical_to_rank_dispatch_physical_map
        moe_layers = list(model.moe_layers)
        assert torch.equal(slot_LE[moe_layers], torch.tensor(placement.slot_LE))
        assert found.logical_to_all_physical(moe_layers[0], 1) == [
            placement.slot_LE[0, 1]
        ]
        dense = [i for i in range(model.num_layers) if i not in moe_layers]
        assert (slot_LE[dense] == torch.arange(model.num_experts)).all()


def test_sglang_takes_no_other_key(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    sglang.write_map(path, PLACEMENT, MODEL)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))
    with pytest.raises(TypeError, match="version"):
        load_in_sglang(path, MODEL, 3, 0)


@pytest.mark.parametrize("num_groups", [1, 8])
def test_the_deepseek_triple_is_that_of_eplb(
    num_groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = source("sglang", "srt/eplb/eplb_algorithms/deepseek.py")
    eplb = run_as_module(text, "deepseek_eplb", monkeypatch)
    load_LE = torch.tensor(np.random.default_rng(1).integers(1, 1000, (5, 64)))
    triple = eplb.rebalance_experts(
        load_LE, 64, num_groups, num_groups, 8, enable_hierarchical=num_groups > 1
    )
    placement = placement_of(triple[0].tolist(), 8)
    deepseek.write_maps(tmp_path / "eplb.npz", placement)
    with np.load(tmp_path / "eplb.npz") as maps:
        for name, expected in zip(
            ("phy2log", "log2phy", "logcnt"), triple, strict=True
        ):
            assert maps[name].dtype == expected.numpy().dtype
            assert np.array_equal(maps[name], expected)


def vllm_ascend_slots(path: Path, layer: int, num_experts: int, ep_size: int) -> Any:
    """Slot of every expert, as 182b75ea finds it: the local index on the device, beyond
    the slots of the devices before; `layer` counts MoE layers."""
    whole = json.loads(path.read_text())
    assert layer < whole["moe_layer_count"]
    devices = whole["layer_list"][layer]["device_list"]
    experts_PS = torch.tensor([device["device_expert"] for device in devices])
    assert experts_PS.numel() == num_experts  # else it counts redundant experts
    local_PE = torch.full((ep_size, num_experts), -1)
    for local_E, experts_S in zip(local_PE, experts_PS, strict=True):
        local_E[experts_S] = torch.arange(len(experts_S))
    offset_P = torch.arange(ep_size)[:, None] * experts_PS.shape[1]
    assert ((local_PE >= 0).sum(0) == 1).all()
    return torch.where(local_PE < 0, 0, local_PE + offset_P).sum(0)


@CASES
def test_vllm_ascend_finds_the_slots(
    model: RoutedModel, placement: Placement, tmp_path: Path
) -> None:
    path, ep_size = tmp_path / "map.json", placement.num_ep_ranks
    vllm_ascend.write_map(path, placement, model, ep_size=ep_size)
    for layer, slot_E in enumerate(placement.slot_LE):
        found = vllm_ascend_slots(path, layer, model.num_experts, ep_size)
        assert np.array_equal(found, slot_E)


@CASES
def test_the_vllm_list_meets_the_rules_of_the_proposal(
    model: RoutedModel, placement: Placement, tmp_path: Path
) -> None:
    """Pull request 49572: one list per MoE layer, ids in range, every expert held."""
    path = tmp_path / "map.json"
    vllm.write_map(path, placement, model)
    rows = json.loads(path.read_text())
    assert len(rows) == len(model.moe_layers)
    for row in rows:
        assert all(type(expert) is int for expert in row)
        assert sorted(row) == list(range(model.num_experts))
