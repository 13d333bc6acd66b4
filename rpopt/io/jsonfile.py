"""JSON text: strict when read, and laid out to be read and compared by people."""

import json
from typing import Any

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, atomic_writer


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text without NaN, infinities or repeated keys."""
    return json.loads(
        text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
    )


def write_json_text(path: AnyPath, value: Any) -> None:
    """Write a JSON value atomically."""
    with atomic_writer(path) as file:
        file.write(pretty(value).encode() + b"\n")


def pretty(value: Any, indent: int = 0) -> str:
    """Return JSON with one key or inner list a line, and flat lists on one line."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        items = [
            f"{pad}{json.dumps(key)}: {pretty(item, indent + 1)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        items = [pad + pretty(item, indent + 1) for item in value]
        return "[\n" + ",\n".join(items) + "\n" + " " * indent + "]"
    return json.dumps(value, allow_nan=False)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise FileFormatError(f"key {twice!r} occurs twice in one object")
    return value


def _refuse_constant(name: str) -> None:
    raise FileFormatError(f"{name} is not a JSON number")
