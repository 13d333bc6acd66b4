"""Presets: published active parameters, counted FLOPs, and the table in the docs."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rpopt import Topology, preset
from rpopt.cost import item_costs, scale_costs
from rpopt.errors import InstanceError
from rpopt.items import build_items
from rpopt.presets import (
    SHAPES,
    DeltaAttention,
    GroupedAttention,
    LatentAttention,
    ModelShape,
    attention_share,
    cost_model,
    markdown_table,
    model_shape,
    preset_names,
)
from rpopt.rules import PackingRules
from rpopt.window import Window

DOCS = Path(__file__).resolve().parents[1] / "docs" / "presets.md"

# Published active parameters (in billions), and the vocabulary tables among them: how
# often (input embedding, output head) and how large. Sources: the model cards.
ACTIVE = {
    "Qwen3-30B-A3B": (3.3, 2, 151936),
    "Qwen3-235B-A22B": (22, 2, 151936),
    "DeepSeek-V3": (37, 2, 129280),
    "Kimi-K2": (32.6, 2, 163840),
    "GLM-4.5": (32, 1, 151552),
    "gpt-oss-20b": (3.6, 1, 201088),
    "gpt-oss-120b": (5.1, 1, 201088),
    "OLMoE-1B-7B": (1.3, 2, 50304),
    "Ling-mini-2.0": (1.43, 2, 157184),
    "Ling-3.0-tiny": (1.3, 2, 157184),
    "Ling-3.0-flash": (5.1, 1, 157184),
}
# (layers, dense, experts, top_k)
SIZES = {
    "Qwen3-30B-A3B": (48, 0, 128, 8),
    "Qwen3-235B-A22B": (94, 0, 128, 8),
    "DeepSeek-V3": (61, 3, 256, 8),
    "Kimi-K2": (61, 1, 384, 8),
    "GLM-4.5": (92, 3, 160, 8),
    "gpt-oss-20b": (24, 0, 32, 4),
    "gpt-oss-120b": (36, 0, 128, 4),
    "OLMoE-1B-7B": (16, 0, 64, 8),
    "Ling-mini-2.0": (20, 1, 256, 8),
    "Ling-3.0-tiny": (24, 1, 128, 8),
    "Ling-3.0-flash": (42, 2, 512, 8),
}


def active_weights(shape: ModelShape) -> float:
    """Weights that one token meets inside the layers: half of its FLOPs."""
    model = cost_model(shape)
    core = sum(kind.num_layers * kind.core_flop()[0] for kind in shape.attention)
    dense = float(sum(c.c1 for c in model.attention)) - core
    copies = shape.top_k * len(shape.moe_layers)
    return (dense + float(model.expert_per_copy) * copies) / 2


@pytest.mark.parametrize("name", preset_names())
def test_active_parameters_agree_with_the_published_ones(name: str) -> None:
    published, tables, vocabulary = ACTIVE[name]
    shape = model_shape(name)
    found = active_weights(shape) + tables * vocabulary * shape.hidden
    assert found / 1e9 == pytest.approx(published, rel=0.065)


@pytest.mark.parametrize("name", preset_names())
def test_sizes(name: str) -> None:
    shape = SHAPES[name]
    layers, dense, experts, top_k = SIZES[name]
    assert shape.name == name
    assert shape.num_layers == layers
    assert shape.moe_layers == range(dense, layers)
    assert (shape.num_experts, shape.top_k) == (experts, top_k)


def attended_pairs(length: int, window: int | None) -> int:
    """Query-key pairs of a causal sample, counted one by one."""
    return sum(
        1
        for query in range(length)
        for key in range(query + 1)
        if window is None or query - key < window
    )


def test_softmax_cores_count_every_pair() -> None:
    full = GroupedAttention(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8)
    latent = LatentAttention(num_layers=1, num_heads=4, q_rank=16)
    for kind, key, value in ((full, 8, 8), (latent, 192, 128)):
        linear, quadratic = kind.core_flop()
        for length in (1, 2, 37):
            expected = attended_pairs(length, None) * 4 * (2 * key + 2 * value)
            assert linear * length + quadratic * length**2 == expected
    narrow = GroupedAttention(
        num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, window_tokens=16
    )
    per_token, quadratic = narrow.core_flop()
    assert quadratic == 0
    expected = attended_pairs(500, 16) * 4 * (2 * 8 + 2 * 8)
    assert expected < per_token * 500 < 1.02 * expected


def test_projections_count_every_weight() -> None:
    grouped = GroupedAttention(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8)
    weights = 64 * 32 + 2 * 64 * 16 + 32 * 64
    assert grouped.projection_flop(64) == 2 * weights
    latent = LatentAttention(num_layers=1, num_heads=4, q_rank=16)
    weights = 64 * 16 + 16 * 4 * 192 + 64 * 576 + 512 * 4 * 256 + 4 * 128 * 64
    assert latent.projection_flop(64) == 2 * weights
    direct = LatentAttention(num_layers=1, num_heads=4, q_rank=None)
    weights += 64 * 4 * 192 - 64 * 16 - 16 * 4 * 192
    assert direct.projection_flop(64) == 2 * weights
    delta = DeltaAttention(num_layers=1, num_heads=4, head_dim=8)
    assert delta.projection_flop(64) == 2 * 6 * 64 * 32
    assert delta.core_flop() == (7 * 4 * 64, 0)


def test_a_cost_model_has_a_class_for_every_kind_of_layer() -> None:
    model = preset("Ling-3.0-tiny")
    assert [c.name for c in model.attention] == ["latent", "linear"]
    assert [c.c2 > 0 for c in model.attention] == [True, False]
    assert (model.unit, model.omega, model.name) == ("flop", None, "Ling-3.0-tiny")
    assert model.expert_per_copy == 6 * 1536 * 512
    for name in preset_names():
        assert preset(name) == cost_model(model_shape(name))


@pytest.mark.parametrize("name", preset_names())
def test_the_share_is_what_a_window_gives(name: str) -> None:
    """`attention_share` agrees with the share that planning a window derives."""
    shape, length, samples = model_shape(name), 512, 4
    layers, experts = len(shape.moe_layers), shape.num_experts
    demand_LE = np.zeros((layers, experts), dtype=np.int32)
    demand_LE[:, : shape.top_k] = length
    window = Window(
        length_N=[length] * samples,
        demand_NLE=np.tile(demand_LE, (samples, 1, 1)),
        top_k=shape.top_k,
    )
    items = build_items(window, PackingRules(token_cap=1024))
    copies_L = np.full(layers, samples * length * shape.top_k)
    topology = Topology(dp=4, ep=4, tp=2)
    scaled = scale_costs(preset(name), window, items, topology, copies_L)
    assert float(scaled.omega) == pytest.approx(attention_share(shape, length))
    flop = sum(item_costs(c, window, items)[0] for c in preset(name).attention)
    assert flop > 2 * length * active_weights(shape) * float(scaled.omega) * 0.99


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InstanceError, match=r"no preset 'GPT'; there are Qwen3-30B"):
        preset("GPT")


def test_costs_are_exact() -> None:
    for name in preset_names():
        model = preset(name)
        values = [model.expert_per_copy, *(c.c1 for c in model.attention)]
        assert all(isinstance(v, Fraction) and v.denominator == 1 for v in values)


def test_the_table_in_the_docs_is_current() -> None:
    assert markdown_table() in DOCS.read_text(encoding="utf-8"), (
        "docs/presets.md is out of date; paste rpopt.presets.markdown_table()"
    )
