"""Placements of a model with dense layers, and files as their readers see them."""

import json
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.expert_map import is_expert_map, read_expert_map
from rpopt.plans import Placement

MODEL = RoutedModel(num_layers=4, moe_layers=(1, 3), num_experts=6, top_k=2)
PLACEMENT = Placement(slot_LE=[[5, 0, 1, 2, 4, 3], [0, 2, 4, 1, 3, 5]], num_ep_ranks=3)
EXPERT_LE = [[1, 2, 3, 5, 4, 0], [0, 3, 1, 4, 2, 5]]
"""The same by hand: the expert in each slot."""


@st.composite
def placed_models(draw: st.DrawFn) -> tuple[RoutedModel, Placement]:
    """A model of any mix of dense and MoE layers, and a placement of its experts."""
    ep_size, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    num_experts, num_layers = ep_size * per_rank, draw(st.integers(1, 6))
    layers = st.sets(st.integers(0, num_layers - 1), min_size=1)
    model = RoutedModel(
        num_layers=num_layers,
        moe_layers=tuple(sorted(draw(layers))),
        num_experts=num_experts,
        top_k=1,
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    slot_LE = [rng.permutation(num_experts) for _ in model.moe_layers]
    return model, Placement(slot_LE=slot_LE, num_ep_ranks=ep_size)


def placement_of(expert_LE: list[list[int]], ep_size: int) -> Placement:
    """The placement that puts these experts into the slots."""
    slot_LE = np.argsort(np.array(expert_LE), axis=1)
    return Placement(slot_LE=slot_LE, num_ep_ranks=ep_size)


def read_sglang(path: Path, model: RoutedModel, ep_size: int) -> Placement:
    """Dense layers must hold the identity."""
    whole = json.loads(path.read_text())
    assert set(whole) == {"physical_to_logical_map"}
    rows = dict(enumerate(whole["physical_to_logical_map"]))
    moe_rows = [rows.pop(layer) for layer in model.moe_layers]
    assert len(moe_rows) + len(rows) == model.num_layers
    assert all(row == list(range(model.num_experts)) for row in rows.values())
    return placement_of(moe_rows, ep_size)


def read_vllm(path: Path, model: RoutedModel, ep_size: int) -> Placement:
    return placement_of(json.loads(path.read_text()), ep_size)


def read_vllm_ascend(path: Path, model: RoutedModel, ep_size: int) -> Placement:
    """Our reader of these maps takes no redundant experts either."""
    assert is_expert_map(path)
    return read_expert_map(path)


def read_deepseek(path: Path, model: RoutedModel, ep_size: int) -> Placement:
    with np.load(path) as maps:
        phy2log, log2phy, logcnt = (maps[n] for n in ("phy2log", "log2phy", "logcnt"))
    assert (logcnt == 1).all()
    assert log2phy.shape == (*logcnt.shape, 1)
    found = placement_of(phy2log.tolist(), ep_size)
    assert np.array_equal(found.slot_LE, log2phy[:, :, 0])
    return found
