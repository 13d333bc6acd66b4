"""Responses of vLLM and SGLang, one JSON object per line.

vLLM has `prompt_token_ids` beside its `choices`, each with `token_ids` and
`routed_experts`: base64 of a `.npy` file [T - 1, L, K], or lists. Version 0.21 split
them in `prompt_routed_experts` (one per response) and a choice's `routed_experts`.
SGLang has `meta_info` with `prompt_tokens`, `completion_tokens` and `routed_experts`:
base64 of int32 without a header, from row `routed_experts_start_len` on.

Read from vLLM's documentation of 0.14 to 0.31 and from SGLang 0.5.23.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, one_line
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import (
    count,
    decode_base64,
    field,
    json_lines,
    length,
    reader,
    shaped,
)
from rpopt.io.routes import SampleRoutes
from rpopt.records import IntArray

_ROUTES = "routed_experts"


@reader
def read_vllm(path: AnyPath, model: RoutedModel) -> Iterator[SampleRoutes]:
    """Yield one sample per choice; the choices of one response are one prompt group.

    Raises
    ------
    FileFormatError
        When a line is damaged or lacks token ids.
    """
    for index, response in json_lines(path):
        yield from _choices(response, index)


@reader
def read_sglang(path: AnyPath, model: RoutedModel) -> Iterator[SampleRoutes]:
    """Yield one sample per response.

    Raises
    ------
    FileFormatError
        When a line is damaged or lacks its token counts.
    """
    for index, response in json_lines(path):
        meta = field(response, "meta_info", index)
        tokens = count(meta, "prompt_tokens", index)
        tokens += count(meta, "completion_tokens", index)
        yield SampleRoutes(
            length_tokens=tokens,
            routes=_sglang_routes(meta.get(_ROUTES), tokens, model, index),
            first_token=_start(meta, index),
        )


def _start(meta: Mapping[str, Any], index: int) -> int:
    """Return the first recorded row where the client noted what it asked for."""
    name = "routed_experts_start_len"
    return count(meta, name, index) if meta.get(name) else 0


def _choices(response: Any, index: int) -> Iterator[SampleRoutes]:
    shared = response.get("prompt_token_ids") if isinstance(response, Mapping) else None
    prompt = _vllm_routes(response, f"prompt_{_ROUTES}", index)
    for choice in field(response, "choices", index):
        ids = {"prompt_token_ids": shared, **choice}
        tokens = length(ids, "prompt_token_ids", index)
        tokens += length(choice, "token_ids", index)
        routes = _vllm_routes(choice, _ROUTES, index)
        if prompt is not None and routes is not None:
            if prompt.shape[1:] != routes.shape[1:]:
                raise FileFormatError(
                    f"sample {index}: prompt_routed_experts {prompt.shape} and"
                    f" routed_experts {routes.shape} differ in layers or K"
                )
            routes = np.concatenate([prompt, routes])
        yield SampleRoutes(length_tokens=tokens, routes=routes, prompt_group=index)


def _vllm_routes(holder: Any, name: str, index: int) -> IntArray | None:
    value = holder.get(name) if isinstance(holder, Mapping) else None
    if value is None:
        return None
    try:
        if isinstance(value, list):
            array = np.asarray(value)
        else:
            data = io.BytesIO(decode_base64(value, name, index))
            array = np.load(data, allow_pickle=False)
    except FileFormatError:
        raise
    except Exception as error:  # NumPy reads its headers as Python text
        raise FileFormatError(
            f"sample {index}, field {name!r} is no .npy array ({one_line(error)})"
        ) from error
    if array.ndim != 3:
        raise FileFormatError(
            f"sample {index}, field {name!r} has shape {array.shape}, not [rows, L, K]"
        )
    return array


def _sglang_routes(
    text: Any, tokens: int, model: RoutedModel, index: int
) -> IntArray | None:
    if text is None:
        return None
    data = decode_base64(text, _ROUTES, index)
    return shaped(data, "int32", (-1, model.num_layers, model.top_k), _ROUTES, index)
