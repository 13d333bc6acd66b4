"""Configurations: TOML files read into frozen keyword-only dataclasses.

Fields may be bool, int, float, str, `Literal` strings, `tuple[T, ...]`, `T | None`,
`Mapping[str, Any]` (a free table) or another such dataclass (a table of its own).
"""

import dataclasses
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rpopt.errors import FileFormatError

Config = TypeVar("Config")


def read_config(path: Path, kind: type[Config]) -> Config:
    """Read a TOML file into a dataclass.

    Raises
    ------
    FileFormatError
        For text that is not TOML, and for an unknown key, a missing one or one of
        another type; the message names the file and the key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as TOML: {error}") from error
    return _build(table, kind, f"{path}: ")


def _build(table: Mapping[str, Any], kind: type[Config], where: str) -> Config:
    """Build a dataclass; `where` ends in the prefix of the table's keys."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(table.keys() - fields.keys()):
        raise FileFormatError(
            f"{where}{unknown[0]} is not a key; the keys here are {', '.join(fields)}"
        )
    missing = [
        name
        for name, field in fields.items()
        if name not in table
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    hints = get_type_hints(kind)
    if missing:
        raise FileFormatError(
            f"{where}{missing[0]} is missing; add it, as {_say(hints[missing[0]])}"
        )
    return kind(
        **{
            name: _convert(value, hints[name], f"{where}{name}")
            for name, value in table.items()
        }
    )


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Return the value as the hint says, or raise naming the key in `where`."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
        return _convert(value, hint, where)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _build(value, hint, f"{where}.")  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list):
        item = get_args(hint)[0]
        return tuple(_convert(v, item, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return value
    if origin is Literal and value in get_args(hint):
        return value
    if hint is float and type(value) is int:
        return float(value)
    # By type and not by isinstance: a bool is no int here.
    if type(value) is hint:
        return value
    raise FileFormatError(f"{where} = {value!r} must be {_say(hint)}")


def _say(hint: Any) -> str:
    """Return a type as a reader of TOML would call it."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_say(o) for o in get_args(hint) if o is not types.NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if origin is tuple:
        return f"an array, each entry {_say(get_args(hint)[0])}"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
    }
    return names.get(hint, "a table")
