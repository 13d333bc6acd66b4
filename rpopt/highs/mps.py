"""Linear models as files that another solver can read: compressed free MPS."""

import gzip
import io
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rpopt.highs.linear import LinearModel


def archive_mps(model: LinearModel, directory: Path) -> Path:
    """Write the model as compressed free MPS, named by its digest.

    The bytes depend on the model alone; numbers are written so that they read back
    unchanged. The file appears under its name only when it is complete.

    Parameters
    ----------
    model
        The model. Its names are used when they are unique and without spaces.
    directory
        Where to write; made when absent.

    Returns
    -------
    Path
        directory / "<sha256>.mps.gz".
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{model.digest}.mps.gz"
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with (
            partial.open("wb") as raw,
            gzip.GzipFile("", "wb", 6, fileobj=raw, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="ascii", newline="\n") as text,
        ):
            text.writelines(f"{line}\n" for line in _mps_lines(model))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _mps_lines(model: LinearModel) -> Iterator[str]:
    cols = _mps_names(model.col_names, model.num_col, "c")
    rows = _mps_names(model.row_names, model.num_row, "r")
    yield f"NAME m{model.digest[:16]}"
    yield from (
        "OBJSENSE",
        f"  {'MAX' if model.maximize else 'MIN'}",
        "ROWS",
        " N obj_",
    )
    low, high = model.row_lower.tolist(), model.row_upper.tolist()
    for i, name in enumerate(rows):
        kind = "E" if low[i] == high[i] else "L" if math.isfinite(high[i]) else "G"
        yield f" {kind} {name}"
    yield "COLUMNS"
    cost, start = model.col_cost.tolist(), model.starts.tolist()
    row_Z, value_Z = model.rows.tolist(), model.coefs.tolist()
    inside = False
    for j, name in enumerate([*cols, ""]):
        integer = j < model.num_col and bool(model.integrality[j])
        if integer != inside:
            yield f" M{j} 'MARKER' '{'INTORG' if integer else 'INTEND'}'"
            inside = integer
        if j < model.num_col:
            yield f" {name} obj_ {cost[j]!r}"
            for z in range(start[j], start[j + 1]):
                yield f" {name} {rows[row_Z[z]]} {value_Z[z]!r}"
    yield from ("RHS", f" RHS obj_ {0.0 - model.offset!r}")
    for i, name in enumerate(rows):
        yield f" RHS {name} {high[i] if math.isfinite(high[i]) else low[i]!r}"
    yield "RANGES"
    for i, name in enumerate(rows):
        if low[i] != high[i] and math.isfinite(low[i]) and math.isfinite(high[i]):
            yield f" RNG {name} {high[i] - low[i]!r}"
    yield "BOUNDS"
    for name, lo, hi in zip(cols, model.col_lower, model.col_upper, strict=True):
        yield f" LO BND {name} {float(lo)!r}" if np.isfinite(lo) else f" MI BND {name}"
        yield f" UP BND {name} {float(hi)!r}" if np.isfinite(hi) else f" PL BND {name}"
    yield "ENDATA"


def _mps_names(names: tuple[str, ...], num: int, letter: str) -> list[str]:
    clean = len(set(names)) == num and all(
        n.isprintable() and n.isascii() and " " not in n and 0 < len(n) < 256
        for n in names
    )
    reserved = "obj_" in names or any(n.startswith("$") for n in names)
    return (
        list(names) if clean and not reserved else [f"{letter}{i}" for i in range(num)]
    )
