"""Routes on disk, in two simple forms, read one sample at a time.

*One .npz file*: `routes` [sum of rows, layers, K], the samples' rows one after the
other; `offsets` [N + 1], where sample i has rows offsets[i] to offsets[i + 1] (none: a
sample without routes); `length_N`; and, where known, `first_token_N`, `prompt_group_N`
and `bundle_N` (-1 for none). Without `length_N`, a sample has one token more than rows.
`topk` is accepted for `routes`, and a `sample` array is passed over.

*One folder*: a `.npy` file [rows, layers, K] per sample, and `samples.json`, a list of
objects in the order of the window such as `{"file": "a.npy", "length": 812}`, with a
null `file` for a sample without routes and, where known, `first_token`, `prompt_group`
and `bundle`.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.io.jsonfile import parse_json
from rpopt.io.npz import Member, member_names, open_npz
from rpopt.io.routes import SampleRoutes
from rpopt.records import Int64Array

_PER_SAMPLE = ("length_N", "first_token_N", "prompt_group_N", "bundle_N")
_KNOWN = {"routes", "topk", "offsets", "sample", *_PER_SAMPLE}
_NUMBERS = ("length", "first_token", "prompt_group", "bundle")


def read_routes(path: AnyPath) -> Iterator[SampleRoutes]:
    """Yield the samples of a folder or an `.npz` file, in either form above.

    Raises
    ------
    FileFormatError
        When a file is missing, damaged or not of the form.
    """
    return _from_folder(Path(path)) if Path(path).is_dir() else _from_npz(path)


def _from_npz(path: AnyPath) -> Iterator[SampleRoutes]:
    with open_npz(path) as archive:
        names = set(member_names(archive))
        if names - _KNOWN:
            raise FileFormatError(
                f"arrays {sorted(names - _KNOWN)} are unknown; known are"
                f" {sorted(_KNOWN)}"
            )
        routes = Member(archive, "topk" if "topk" in names else "routes")
        if len(routes.shape) != 3:
            raise FileFormatError(f"routes have shape {routes.shape}, not three axes")
        rows_N = _rows(_integers(archive, "offsets"), routes.shape[0])
        columns = {
            name: _integers(archive, name) for name in _PER_SAMPLE if name in names
        }
        for name, column in columns.items():
            if column.size != rows_N.size:
                raise FileFormatError(
                    f"{name} has {column.size} entries for {rows_N.size} samples"
                )
        if "length_N" not in columns:
            if not rows_N.all():
                raise FileFormatError("a sample without rows needs length_N; add it")
            columns["length_N"] = rows_N + 1
        for i, rows in enumerate(rows_N.tolist()):
            given = {name: int(column[i]) for name, column in columns.items()}
            yield SampleRoutes(
                length_tokens=given["length_N"],
                routes=routes.read(rows) if rows else None,
                first_token=given.get("first_token_N", 0),
                prompt_group=_known(given.get("prompt_group_N", -1)),
                bundle=_known(given.get("bundle_N", -1)),
            )


def _from_folder(folder: Path) -> Iterator[SampleRoutes]:
    index = folder / "samples.json"
    with reading(index):
        entries = parse_json(index.read_bytes())
        if not isinstance(entries, list):
            raise FileFormatError("must be a list with one object per sample")
        for i, entry in enumerate(entries):
            _check_entry(i, entry)
    for entry in entries:
        routes = None
        if entry.get("file") is not None:
            with reading(folder / entry["file"]):
                routes = np.load(
                    folder / entry["file"], mmap_mode="r", allow_pickle=False
                )
        yield SampleRoutes(
            length_tokens=entry["length"],
            routes=routes,
            first_token=entry.get("first_token", 0),
            prompt_group=entry.get("prompt_group"),
            bundle=entry.get("bundle"),
        )


def _check_entry(i: int, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) - {"file", *_NUMBERS}:
        raise FileFormatError(
            f"entry {i} must be an object with keys among"
            f" {['file', *_NUMBERS]}, got {str(entry)[:80]}"
        )
    for name in _NUMBERS:
        if (name == "length" or name in entry) and type(entry.get(name)) is not int:
            raise FileFormatError(f"entry {i} needs a whole number as {name!r}")
    file = entry.get("file")
    if file is not None and (not isinstance(file, str) or Path(file).name != file):
        raise FileFormatError(f"entry {i} names {file!r}, not a file in the folder")


def _integers(archive: zipfile.ZipFile, name: str) -> Int64Array:
    member = Member(archive, name)
    if member.dtype.kind not in "iu" or len(member.shape) != 1:
        raise FileFormatError(
            f"{name} is {member.dtype} of shape {member.shape}; whole numbers on one"
            " axis are needed"
        )
    return member.read().astype(np.int64)


def _rows(offsets: Int64Array, total: int) -> Int64Array:
    rows_N = np.diff(offsets)
    if (
        offsets.size < 2
        or offsets[0] != 0
        or offsets[-1] != total
        or np.any(rows_N < 0)
    ):
        raise FileFormatError(
            f"offsets must rise from 0 to the {total} rows of the routes, one entry"
            " more than samples"
        )
    return rows_N


def _known(number: int) -> int | None:
    return None if number < 0 else number
