"""The layer map of every model family, and configurations that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.model_config import model_from_config, read_model_config

BASE = {"num_hidden_layers": 6, "num_experts": 16, "num_experts_per_tok": 4}


@pytest.mark.parametrize(
    ("extra", "layers"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"first_k_dense_replace": 2}, [2, 3, 4, 5]),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4]),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, [1, 2, 4, 5]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": []}, [1, 3, 5]),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 5]}, [1, 2, 3, 4]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5]),
        ({"num_nextn_predict_layers": 1}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_layer_maps(extra: dict[str, Any], layers: list[int]) -> None:
    model = model_from_config(BASE | extra)
    assert list(model.moe_layers) == layers
    assert (model.num_layers, model.num_experts, model.top_k) == (6, 16, 4)


def test_names_of_families_and_nested_configs(tmp_path: Path) -> None:
    deepseek = {"num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": deepseek}))
    model = read_model_config(tmp_path)
    assert (model.num_experts, model.top_k) == (8, 2)
    assert read_model_config(tmp_path / "config.json") == model


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"num_experts": None}, "n_routed_experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok = 0"),
        ({"first_k_dense_replace": 6}, "none of its 6 layers"),
        ({"moe_layer_freq": [1, 0]}, "2 entries for 6 layers"),
    ],
)
def test_other_models_are_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(InstanceError, match=words):
        model_from_config(BASE | extra)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"config\.json"):
        read_model_config(tmp_path)
