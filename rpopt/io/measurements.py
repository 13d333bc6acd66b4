"""Measured times: tables (CSV, gzipped CSV, JSON lines) told apart by their columns.

==================  ================================================================
columns             meaning
==================  ================================================================
seconds, features   what the trainer writes; see `rpopt.calibration.Measurements`
prefill_chunk,      attention kernel of one layer: a chunk of q tokens after kv cached
kv_prefill, ...     ones counts q tokens and q**2 + 2 q kv squared tokens; rows with
                    decoding are left out
tokens,             one MoE layer: tokens x top-k copies, and the experts it reads
activated_experts
tokens, w1_ns, ...  the three products of one expert
==================  ================================================================

Kernel times are those of the LLMServingSim profiles (times in us or ns).
"""

import csv
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rpopt.calibration import FEATURES, FloatArray, Measurements
from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath, reading
from rpopt.records import BoolArray

Columns = Mapping[str, FloatArray]


def read_measurements(
    path: AnyPath, *, top_k: int | None = None, min_tokens: int = 0
) -> Measurements:
    """Read one table of measured times.

    Parameters
    ----------
    top_k
        Experts per token, needed for times of a whole MoE layer.
    min_tokens
        Leave out measurements of fewer tokens: kernels that only read weights say
        nothing about training micro-batches. Expert kernels count tokens per expert.

    Raises
    ------
    FileFormatError
        When the file cannot be read, its columns are not known, or nothing is left.
    """
    with reading(path):
        columns = _read_columns(Path(path))
        for needed, convert in _FORMATS:
            if needed <= set(columns):
                seconds_M, features, size_M = convert(columns, top_k)
                return _above(seconds_M, features, size_M >= min_tokens, str(path))
        raise FileFormatError(
            f"columns {sorted(columns)} are not known; give seconds and some of"
            f" {FEATURES}"
        )


def _above(
    seconds_M: FloatArray, features: Columns, kept_M: BoolArray, name: str
) -> Measurements:
    if not kept_M.any():
        raise InstanceError("no measurement is left; lower min_tokens")
    kept = {key: values[kept_M] for key, values in features.items()}
    return Measurements(
        seconds_M=seconds_M[kept_M], features=kept, name=Path(name).name
    )


def _read_columns(path: Path) -> Columns:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    if text.lstrip().startswith("{"):
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise FileFormatError("no measurements")
    return {
        key: np.array([float(row[key]) for row in rows])
        for key in rows[0]
        if key != "name"
    }


Converted = tuple[FloatArray, Columns, FloatArray]


def _trainer(columns: Columns, top_k: int | None) -> Converted:
    features = {key: columns[key] for key in FEATURES if key in columns}
    seconds_M = columns["seconds"]
    return seconds_M, features, columns.get("tokens", np.full(seconds_M.size, np.inf))


def _attention(columns: Columns, top_k: int | None) -> Converted:
    prefill = (columns["n_decode"] == 0) & (columns["prefill_chunk"] > 0)
    chunk_M, cached_M = (
        columns["prefill_chunk"][prefill],
        columns["kv_prefill"][prefill],
    )
    squared_M = chunk_M**2 + 2 * chunk_M * cached_M
    seconds_M = columns["time_us"][prefill] / 1e6
    return seconds_M, {"tokens": chunk_M, "tokens_squared": squared_M}, chunk_M


def _moe_layer(columns: Columns, top_k: int | None) -> Converted:
    if top_k is None:
        raise InstanceError("times of a whole MoE layer need top_k")
    copies_M = columns["tokens"] * top_k
    activated_M = columns["activated_experts"]
    features = {"copies": copies_M, "activated": activated_M}
    return columns["time_us"] / 1e6, features, copies_M / activated_M


def _one_expert(columns: Columns, top_k: int | None) -> Converted:
    total_ns = columns["w1_ns"] + columns["w2_ns"] + columns["w3_ns"]
    return total_ns / 1e9, {"copies": columns["tokens"]}, columns["tokens"]


_FORMATS: Sequence[tuple[set[str], Callable[[Columns, int | None], Converted]]] = (
    ({"seconds"}, _trainer),
    ({"prefill_chunk", "kv_prefill", "n_decode", "time_us"}, _attention),
    ({"tokens", "activated_experts", "time_us"}, _moe_layer),
    ({"tokens", "w1_ns", "w2_ns", "w3_ns"}, _one_expert),
)
