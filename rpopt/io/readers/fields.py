"""Fields of a sample, taken one at a time with errors that name sample and field."""

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.io.jsonfile import parse_json
from rpopt.records import Int64Array, IntArray

_P = ParamSpec("_P")
_T = TypeVar("_T")

ROUTE_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Counts:
    """Token copies of one forward pass, or of one table.

    Parameters
    ----------
    count_LE
        Any whole numbers [layers, E]; not checked.
    layer_ids
        Absolute numbers of the layers; None where the file does not name them.
    """

    count_LE: IntArray
    layer_ids: Int64Array | None = None


def reader(read: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """Make every failure of a reader a `FileFormatError` that names the file.

    The file is the reader's first argument.
    """

    @wraps(read)
    def named(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        with reading(str(args[0])):
            yield from read(*args, **kwargs)

    return named


def field(sample: Any, name: str, index: int, *, what: str = "sample") -> Any:
    """Return a field that must be there."""
    if not isinstance(sample, Mapping) or name not in sample:
        found = sorted(map(str, sample)) if isinstance(sample, Mapping) else "no object"
        raise FileFormatError(f"{what} {index} has no field {name!r} (found: {found})")
    return sample[name]


def count(sample: Any, name: str, index: int) -> int:
    """Return a field that must be a positive whole number."""
    value = field(sample, name, index)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value < 1:
        raise FileFormatError(
            f"sample {index}, field {name!r}: {str(value)[:40]!r} is no positive whole"
            " number"
        )
    return value


def group(sample: Mapping[str, Any], name: str) -> int | None:
    """Return a prompt group's number where there is one."""
    value = sample.get(name)
    return value if type(value) is int and value >= 0 else None


def length(sample: Any, name: str, index: int) -> int:
    """Return the length of a field that must be a non-empty list."""
    value = field(sample, name, index)
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__"):
        raise FileFormatError(f"sample {index}, field {name!r} is not a list")
    if len(value) == 0:
        raise FileFormatError(f"sample {index}, field {name!r} is empty")
    return len(value)


def decode_base64(text: Any, name: str, index: int) -> bytes:
    """Return the bytes of a base64 field."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise FileFormatError(
            f"sample {index}, field {name!r} is no base64 text ({error}); was it cut?"
        ) from error


def shaped(
    data: bytes, dtype: str, shape: tuple[int, ...], name: str, index: int
) -> IntArray:
    """Return raw bytes as an array; -1 stands for the axis that follows from them."""
    if dtype not in ROUTE_TYPES:
        raise FileFormatError(
            f"sample {index}, field {name!r}: type {dtype[:20]!r} is unknown; known are"
            f" {', '.join(ROUTE_TYPES)}"
        )
    try:
        return np.frombuffer(data, dtype=f"<{np.dtype(dtype).str[1:]}").reshape(shape)
    except ValueError as error:
        raise FileFormatError(
            f"sample {index}, field {name!r}: {len(data)} bytes of {dtype} do not make"
            f" an array of shape {shape}; check the layers and K, and that it is whole"
        ) from error


def without_trailing_zeros(routes: IntArray) -> IntArray:
    """Cut rows of 0 off the end: filler, as the K > 1 ids of a token differ.

    Routes that are 0 all over stay as they are, for the normaliser to refuse.
    """
    end = len(routes)
    while end and not routes[end - 1].any():
        end -= 1
    return routes[:end] if end and routes.shape[-1] > 1 else routes


def json_lines(path: AnyPath) -> Iterator[tuple[int, Any]]:
    """Yield number and value of every line that is not blank, one at a time."""
    with Path(path).open(encoding="utf-8") as file:
        index = 0
        for line in file:
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except json.JSONDecodeError as error:
                raise FileFormatError(
                    f"sample {index} is no JSON object ({error}); is the file cut off?"
                ) from error
            yield index, value
            index += 1
        if index == 0:
            raise FileFormatError("has no samples")
