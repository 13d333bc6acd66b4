"""Recordings of expert load: token copies per layer and expert, without samples.

A recording is what placement needs and no more: `rpopt place`, or a `PlacementInstance`
of its `load_LE`. The form follows from the end of the file's name:

==================  ==============================================================
.pt                 SGLang's expert distribution recorder, see `sglang_recorder`
.json               `{"logical_count": ...}`, as for SGLang's --init-expert-location
.csv, .csv.gz       one line per layer and one number per expert, see `load_table`
==================  ==============================================================

Axis letters: L MoE layers, E experts.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers import load_table, sglang_recorder
from rpopt.io.readers.fields import Counts
from rpopt.placement.instance import MAX_LAYER_LOAD
from rpopt.records import Int64Array, int_array

_READERS: Mapping[str, Callable[[AnyPath, RoutedModel | None], Iterator[Counts]]] = {
    ".pt": sglang_recorder.read_recording,
    ".json": load_table.read_json_counts,
    ".csv": load_table.read_csv,
    ".csv.gz": load_table.read_csv,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertLoad:
    """What was recorded, added up.

    Parameters
    ----------
    load_LE
        Token copies of every logical expert; int64, no layer is empty.
    layer_ids_L
        Absolute numbers of the MoE layers.
    num_passes
        Forward passes (or tables) that held any load.
    """

    load_LE: Int64Array
    layer_ids_L: Int64Array
    num_passes: int


def read_expert_load(
    paths: Sequence[AnyPath],
    model: RoutedModel | None = None,
    *,
    progress: bool = True,
) -> ExpertLoad:
    """Read recordings and add them up, one forward pass at a time.

    Parameters
    ----------
    paths
        Files of one model: those of all ranks where each writes its own.
    model
        Says which layers are MoE layers. Without it, layers without load are taken for
        dense ones and left out.
    progress
        Show a bar on stderr when that is a terminal.

    Raises
    ------
    FileFormatError
        When a file is damaged or does not fit the model or the files before it; the
        message names file and field.
    """
    total: _Total | None = None
    off = not (progress and sys.stderr.isatty())
    with tqdm(desc="passes", unit="", disable=off) as bar:
        for path in paths:
            for counts in _reader(path)(path, model):
                try:
                    total = total or _Total(counts, model)
                    total.add(counts)
                except InstanceError as error:
                    raise FileFormatError(f"{path}: {error}") from error
                bar.update()
            if total is None:
                raise FileFormatError(f"{path}: has no forward pass; record some load")
    if total is None:
        raise InstanceError("no recording of expert load; name at least one file")
    try:
        return total.result(model)
    except InstanceError as error:
        raise FileFormatError(f"{', '.join(map(str, paths))}: {error}") from error


def _reader(
    path: AnyPath,
) -> Callable[[AnyPath, RoutedModel | None], Iterator[Counts]]:
    name = Path(path).name
    for end, read in _READERS.items():
        if name.endswith(end):
            return read
    raise FileFormatError(
        f"{path}: recordings of expert load end in {', '.join(_READERS)}"
    )


class _Total:
    """The sum over all passes, in the layers of the files."""

    def __init__(self, first: Counts, model: RoutedModel | None) -> None:
        shape = np.shape(first.count_LE)
        if len(shape) != 2 or 0 in shape:
            raise InstanceError(f"counts have shape {shape}; [layers, E] is needed")
        if model is not None and shape[1] != model.num_experts:
            raise InstanceError(
                f"load of {shape[1]} experts; the model has {model.num_experts}"
            )
        self._layer_ids = _layer_ids(first, shape[0], model)
        self._load = np.zeros(shape, dtype=np.int64)
        self._num_passes = 0

    def add(self, counts: Counts) -> None:
        """Add one pass."""
        count_LE = int_array(counts.count_LE, name="counts", ndim=2, minimum=0)
        layers = counts.layer_ids
        if count_LE.shape != self._load.shape or (
            layers is not None and not np.array_equal(layers, self._layer_ids)
        ):
            raise InstanceError(
                f"counts of {count_LE.shape} (layers, experts) after those of"
                f" {self._load.shape}, or of other layers; do not mix models"
            )
        if count_LE.max() >= MAX_LAYER_LOAD:
            raise InstanceError(f"a count of {count_LE.max()} is not below 2**48")
        self._load += count_LE
        self._num_passes += bool(count_LE.any())

    def result(self, model: RoutedModel | None) -> ExpertLoad:
        """Return the sum of the MoE layers."""
        has_load = self._load.any(axis=1)
        if not has_load.any():
            raise InstanceError(
                "every count is 0: nothing was recorded (was the recorder started?)"
            )
        if model is not None:
            is_moe = np.isin(self._layer_ids, model.moe_layers)
            wrong = self._layer_ids[is_moe != has_load]
            if wrong.size:
                what = "no load" if np.isin(wrong[0], model.moe_layers) else "load"
                raise InstanceError(
                    f"layer {wrong[0]} has {what}, which does not fit the model: its"
                    f" MoE layers are {list(model.moe_layers)}"
                )
        return ExpertLoad(
            load_LE=self._load[has_load],
            layer_ids_L=self._layer_ids[has_load],
            num_passes=self._num_passes,
        )


def _layer_ids(
    counts: Counts, num_layers: int, model: RoutedModel | None
) -> Int64Array:
    """Return the absolute number of every layer of a file."""
    if counts.layer_ids is not None:
        return counts.layer_ids
    if model is None or num_layers == model.num_layers:
        return np.arange(num_layers)
    if num_layers == len(model.moe_layers):
        return np.array(model.moe_layers, dtype=np.int64)
    raise InstanceError(
        f"{num_layers} layers; the model has {model.num_layers}, of which"
        f" {len(model.moe_layers)} are MoE layers"
    )
