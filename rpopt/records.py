"""Frozen records with read-only arrays and a digest: the base of every core type.

A record is a frozen keyword-only dataclass whose fields are either NumPy arrays or
JSON values (numbers, strings, booleans, None, `Fraction`, tuples and other records).
The digest is the sha256 of the schema name, the canonical JSON of the values and the
bytes of the arrays, so equal records have equal digests on every machine.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError

IntArray = npt.NDArray[np.integer[Any]]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_R = TypeVar("_R", bound="Record")


class Record:
    """Base of the core types: digest, equality by digest, and plain-data views."""

    __slots__ = ("_digest",)
    SCHEMA: ClassVar[str]
    _digest: str

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the array fields by name, absent (None) arrays left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {k: v for k, v in values.items() if isinstance(v, np.ndarray)}

    def values(self) -> dict[str, Any]:
        """Return the fields that are not arrays, as JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {k: plain(v) for k, v in values.items() if not isinstance(v, np.ndarray)}

    @property
    def digest(self) -> str:
        """The sha256 of the record's content, in hexadecimal."""
        try:
            return self._digest
        except AttributeError:
            digest = content_digest(self.SCHEMA, self.values(), self.arrays())
            object.__setattr__(self, "_digest", digest)
            return digest

    def __eq__(self, other: object) -> bool:
        """Compare by content."""
        return (
            isinstance(other, Record)
            and type(self) is type(other)
            and self.digest == other.digest
        )

    def __hash__(self) -> int:
        """Hash by content."""
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle through the constructor, so that checks and flags are kept."""
        kwargs = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return _rebuild, (type(self), kwargs)


def _rebuild(cls: type[Any], kwargs: dict[str, Any]) -> Any:
    return cls(**kwargs)


def plain(value: Any) -> Any:
    """Turn a field into JSON values; arrays become lists, fractions "a/b"."""
    if isinstance(value, Record):
        return {**value.values(), **{k: v.tolist() for k, v in value.arrays().items()}}
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return value


def record_from_plain(cls: type[_R], data: Any) -> _R:
    """Return the record whose plain view is `data`: the inverse of `plain`.

    Parameters
    ----------
    cls
        The record type; its field annotations say how each value is read.
    data
        A mapping with exactly the fields of `cls`. Arrays may be given as nested lists
        or as arrays of the declared type.

    Raises
    ------
    InstanceError
        When a field is missing, unknown or of another type, or the record refuses it.
    """
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    if not isinstance(data, Mapping) or set(data) != set(names):
        found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise InstanceError(
            f"{cls.__name__} needs exactly the fields {sorted(names)}, got {found}"
        )
    hints = _hints(cls)  # type: ignore[arg-type]
    return cls(**{name: _decode(hints[name], data[name], name) for name in names})


@lru_cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode(hint: Any, value: Any, where: str) -> Any:
    """Turn one JSON value into what an annotation asks for."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        (hint,) = (option for option in options if option is not NoneType)
        return _decode(hint, value, where)
    if origin is tuple and isinstance(value, list):
        kinds = [options[0]] * len(value) if options[-1] is Ellipsis else options
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(_decode(k, v, f"{where}[{i}]") for i, (k, v) in pairs)
    elif origin is np.ndarray:
        return _decode_array(np.dtype(get_args(options[1])[0]), value, where)
    elif origin is Mapping and isinstance(value, dict):
        return value
    elif isinstance(hint, type) and issubclass(hint, Record):
        return record_from_plain(hint, value)
    elif hint is Fraction and isinstance(value, str):
        if re.fullmatch(r"-?\d{1,4000}(/[1-9]\d{0,3999})?", value, re.ASCII):
            return Fraction(value)
    elif (origin is Literal and value in options) or type(value) is hint:
        return value
    raise InstanceError(f"{where} = {str(value)[:80]!r} does not fit {hint}")


def _decode_array(dtype: np.dtype[Any], value: Any, where: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        if value.dtype != dtype:
            raise InstanceError(f"{where} holds {value.dtype}; it needs {dtype}")
        return value
    try:
        array = np.asarray(value if isinstance(value, list) else None)
    except ValueError as error:
        raise InstanceError(f"{where} is a ragged list; rows differ") from error
    if array.size and array.dtype.kind not in "iu":
        raise InstanceError(f"{where} holds {array.dtype}; it needs whole numbers")
    return array


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def content_digest(
    schema: str, values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> str:
    """Return the sha256 of a schema name, its values and its arrays."""
    sha = hashlib.sha256(f"{schema}\n{canonical_json(values)}\n".encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        sha.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        sha.update(little.data if little.size else b"")
    return sha.hexdigest()


def freeze(record: object, name: str, value: object) -> None:
    """Set a field of a frozen record; only for use inside `__post_init__`."""
    object.__setattr__(record, name, value)


def int_array(
    value: Any,
    *,
    name: str,
    ndim: int,
    dtype: npt.DTypeLike = np.int64,
    minimum: int | None = None,
) -> npt.NDArray[Any]:
    """Return a read-only integer array, or say why the value is not one.

    Parameters
    ----------
    value
        Anything NumPy turns into an array of whole numbers.
    name
        What to call the array in error messages.
    ndim
        The number of axes it must have.
    dtype
        The integer type to store; a value outside it is an error, never wrapped.
    minimum
        The smallest value allowed.

    Raises
    ------
    InstanceError
        For a wrong number of axes, non-integers, or values out of range.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InstanceError(f"{name} is ragged; its rows differ in length") from error
    if array.ndim != ndim:
        raise InstanceError(
            f"{name} has {array.ndim} axes (shape {array.shape}); it needs {ndim}"
        )
    target = np.dtype(dtype)
    if not np.issubdtype(array.dtype, np.integer):
        array = _whole_numbers(array, name)
    if array.size:
        low, high = int(array.min()), int(array.max())
        floor = np.iinfo(target).min if minimum is None else minimum
        if low < floor or high > np.iinfo(target).max:
            bad = low if low < floor else high
            index = np.unravel_index(int((array == bad).argmax()), array.shape)
            where = ", ".join(str(int(i)) for i in index)
            raise InstanceError(
                f"{name}[{where}] = {bad} is outside"
                f" [{floor}, {np.iinfo(target).max}]; correct that entry"
            )
    frozen = np.ascontiguousarray(array, dtype=target)
    if _is_writeable(frozen) and np.may_share_memory(frozen, value):
        frozen = frozen.copy()
    frozen.setflags(write=False)
    return frozen


def _is_writeable(array: npt.NDArray[Any]) -> bool:
    """Return whether anyone can write to the memory, through a base of a view too."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    return False


def _whole_numbers(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "O" and all(
        isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in array.flat
    ):
        return array
    if array.dtype.kind != "f":
        raise InstanceError(f"{name} holds {array.dtype}; it needs whole numbers")
    bad = ~(np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < 2**53))
    if bad.any():
        first = array[bad].flat[0]
        raise InstanceError(f"{name} holds {first}; it needs whole numbers")
    return array.astype(np.int64)


def positive_int(value: Any, *, name: str, minimum: int = 1) -> int:
    """Return a plain int of at least `minimum`, or raise naming it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InstanceError(f"{name} = {value!r} is not a whole number")
    if value < minimum:
        raise InstanceError(f"{name} = {value} must be at least {minimum}")
    return int(value)
