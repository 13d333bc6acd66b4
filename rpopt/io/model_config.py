"""What a model's `config.json` (Hugging Face) says about its routing.

Which layers are MoE layers differs by model family:

======================  ==============================================================
key                     meaning
======================  ==============================================================
first_k_dense_replace   layers below this number are dense (DeepSeek, GLM, Kimi, Ling)
moe_layer_freq          a number f: of the others, those divisible by f are MoE; or a
                        list with 0 (dense) or 1 (MoE) per layer
mlp_only_layers         these layers are dense (Qwen)
decoder_sparse_step     a number f: layers with (number + 1) divisible by f are MoE
======================  ==============================================================

Layers of multi-token prediction come after `num_hidden_layers` and are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath, reading
from rpopt.io.jsonfile import parse_json
from rpopt.records import positive_int

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedModel:
    """The routing of a model.

    Parameters
    ----------
    num_layers
        All hidden layers, dense ones included.
    moe_layers
        Absolute numbers of the MoE layers, increasing.
    num_experts, top_k
        E and K; shared experts are not counted.
    """

    num_layers: int
    moe_layers: tuple[int, ...]
    num_experts: int
    top_k: int


def read_model_config(path: AnyPath) -> RoutedModel:
    """Read a `config.json`, or the one in a model's folder.

    Raises
    ------
    FileFormatError
        When the file cannot be read or does not describe an MoE model.
    """
    file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
    with reading(file):
        config = parse_json(file.read_bytes())
        if not isinstance(config, dict):
            raise FileFormatError("is not a JSON object")
        return model_from_config(config)


def model_from_config(config: Mapping[str, Any]) -> RoutedModel:
    """Return the routing that a configuration describes.

    Raises
    ------
    InstanceError
        When a number is missing or no layer is an MoE layer.
    """
    if isinstance(config.get("text_config"), Mapping):  # multimodal models
        config = config["text_config"]
    num_layers = _number(config, ("num_hidden_layers", "n_layer"))
    moe_layers = tuple(i for i in range(num_layers) if _is_moe(config, i, num_layers))
    if not moe_layers:
        raise InstanceError(f"none of its {num_layers} layers is an MoE layer")
    return RoutedModel(
        num_layers=num_layers,
        moe_layers=moe_layers,
        num_experts=_number(config, _EXPERTS),
        top_k=_number(config, _TOP_K),
    )


def _is_moe(config: Mapping[str, Any], layer: int, num_layers: int) -> bool:
    frequency = config.get("moe_layer_freq") or 1
    if isinstance(frequency, list):
        if len(frequency) != num_layers:
            raise InstanceError(
                f"moe_layer_freq has {len(frequency)} entries for {num_layers} layers"
            )
        return bool(frequency[layer])
    step = positive_int(config.get("decoder_sparse_step") or 1, name="sparse step")
    return (
        layer >= (config.get("first_k_dense_replace") or 0)
        and layer % positive_int(frequency, name="moe_layer_freq") == 0
        and layer not in (config.get("mlp_only_layers") or ())
        and (layer + 1) % step == 0
    )


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        if config.get(name) is not None:
            return positive_int(config[name], name=name)
    raise InstanceError(
        f"has none of {', '.join(names)}; is it the config.json of an MoE model?"
    )
