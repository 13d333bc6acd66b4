"""SGLang's expert distribution recorder (`--expert-distribution-recorder-mode`).

`stat` and `stat_approx` write one file for all ranks with `logical_count` [passes,
layers, E]; a buffer that was not filled ends in passes of zeros. `per_pass` and
`per_token` write one file per rank with `records`, one per forward pass, and
`last_physical_to_logical_map` [layers, P]. A record has `global_physical_count`
[layers, P]; per token also `topk_ids_of_layer` [layers, tokens, 8], which are physical
ids, -1 where unset. All layers of the model are there; dense ones are empty. Read from
SGLang 0.5.23.

Axis letters: L layers of the file, E logical experts, P physical experts, T tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import Counts, field, reader
from rpopt.io.readers.torch_files import as_integers, load
from rpopt.records import Int64Array, IntArray, int_array

_MAP = "last_physical_to_logical_map"
_IDS, _COUNT = "topk_ids_of_layer", "global_physical_count"
UNSET = -1


@reader
def read_recording(path: AnyPath, model: RoutedModel | None) -> Iterator[Counts]:
    """Yield the counts of every forward pass, in any of the four modes.

    Raises
    ------
    FileFormatError
        When the file is damaged, of another version, or a count or id is impossible.
    """
    data = load(path)
    if not isinstance(data, Mapping) or not {"logical_count", "records"} & set(data):
        raise FileFormatError(
            "has neither 'logical_count' nor 'records'; give a file of SGLang's expert"
            " distribution recorder"
        )
    if "logical_count" in data:
        yield from passes(as_integers(data["logical_count"]))
        return
    to_logical_LP = _logical_ids(field(data, _MAP, 0, what="recording"))
    for index, record in enumerate(field(data, "records", 0, what="recording")):
        is_per_token = isinstance(record, Mapping) and _IDS in record
        name = _IDS if is_per_token else _COUNT
        value = as_integers(field(record, name, index, what="record"))
        try:
            if is_per_token:
                top_k = None if model is None else model.top_k
                yield Counts(_count_ids(value, to_logical_LP, top_k))
            else:
                yield Counts(_to_logical(value, to_logical_LP))
        except InstanceError as error:
            raise FileFormatError(f"record {index}, field {name!r}: {error}") from error


def passes(counts: IntArray) -> Iterator[Counts]:
    """Yield the passes of a `logical_count` [layers, E] or [passes, layers, E].

    Raises
    ------
    FileFormatError
        When it has another number of axes.
    """
    if counts.ndim not in (2, 3):
        raise FileFormatError(
            f"logical_count has shape {counts.shape}; [layers, E] or [passes, layers,"
            " E] is needed"
        )
    for count_LE in counts.reshape(-1, *counts.shape[-2:]):
        yield Counts(count_LE)


def _logical_ids(value: Any) -> Int64Array:
    """Return the map [L, P]; every layer holds every logical expert."""
    to_logical_LP: Int64Array = int_array(
        as_integers(value), name=_MAP, ndim=2, minimum=0
    )
    num_experts = int(to_logical_LP.max(initial=-1)) + 1
    for layer, row_P in enumerate(to_logical_LP):
        missing = np.setdiff1d(np.arange(num_experts), row_P)
        if missing.size:
            raise FileFormatError(
                f"{_MAP}, layer {layer} has no slot of expert {missing[0]}"
                f" ({missing.size} of {num_experts} experts are missing)"
            )
    return to_logical_LP


def _to_logical(count_LP: IntArray, to_logical_LP: Int64Array) -> Int64Array:
    """Add up the replicas of every expert."""
    count_LP = int_array(count_LP, name="it", ndim=2, minimum=0)
    if count_LP.shape != to_logical_LP.shape:
        raise InstanceError(
            f"shape {count_LP.shape}; the map has {to_logical_LP.shape} (layers,"
            " physical experts)"
        )
    num_layers, num_experts = len(count_LP), int(to_logical_LP.max()) + 1
    count_LE = np.zeros((num_layers, num_experts), dtype=np.int64)
    np.add.at(count_LE, (np.arange(num_layers)[:, None], to_logical_LP), count_LP)
    return count_LE


def _count_ids(
    physical_LTK: IntArray, to_logical_LP: Int64Array, top_k: int | None
) -> Int64Array:
    """Check the ids of one record and count them as logical experts [L, E].

    A token has K ids in a layer, or none: dense layers and padding. K is the largest
    number found where the model is unknown.
    """
    num_layers, num_physical = to_logical_LP.shape
    ids_LTK = int_array(physical_LTK, name="it", ndim=3, minimum=UNSET)
    if len(ids_LTK) != num_layers:
        raise InstanceError(f"{len(ids_LTK)} layers; the map has {num_layers}")
    if ids_LTK.max(initial=UNSET) >= num_physical:
        raise InstanceError(
            f"physical id {ids_LTK.max()} of {num_physical} (are shared experts fused"
            " into the routed ones?)"
        )
    is_set_LTK = ids_LTK != UNSET
    num_set_LT = is_set_LTK.sum(axis=2)
    top_k = num_set_LT.max(initial=0) if top_k is None else top_k
    wrong = np.argwhere((num_set_LT != 0) & (num_set_LT != top_k))
    if wrong.size:
        layer, token = wrong[0]
        raise InstanceError(
            f"token {token} has {num_set_LT[layer, token]} ids in layer {layer}; K ="
            f" {top_k} or none are needed"
        )
    layer_L11 = np.arange(num_layers)[:, None, None]
    logical_LTK = np.where(is_set_LTK, to_logical_LP[layer_L11, ids_LTK], UNSET)
    logical_LTK.sort(axis=2)
    twice = np.diff(logical_LTK, axis=2) == 0
    twice &= logical_LTK[:, :, 1:] != UNSET
    if twice.any():
        layer, token, _ = np.argwhere(twice)[0]
        raise InstanceError(
            f"token {token} repeats an expert in layer {layer}:"
            f" {logical_LTK[layer, token].tolist()}"
        )
    num_experts = int(to_logical_LP.max()) + 1
    flat = (logical_LTK + layer_L11 * num_experts)[logical_LTK != UNSET]
    size = num_layers * num_experts
    return np.bincount(flat, minlength=size).reshape(num_layers, num_experts)
