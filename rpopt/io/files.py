"""Files of windows, instances, solutions, plans and certificates.

Windows and instances are `.npz` files without pickle: their arrays, and one JSON text
`header` with schema, digest, origin and the other values. Everything else is JSON with
schema, digest and content. Whatever is wrong with a file is one `FileFormatError`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rpopt.certificate import Certificate
from rpopt.cost import CostModel
from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath, atomic_writer, reading
from rpopt.io.jsonfile import parse_json, write_json_text
from rpopt.io.npz import (
    HEADER,
    Member,
    member_names,
    open_npz,
    read_header,
    write_npz_members,
)
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance, PackingSolution
from rpopt.placement.instance import PlacementInstance
from rpopt.plans import Layout, Placement, Plan
from rpopt.records import Record, canonical_json, plain, record_from_plain
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window

NPZ_SCHEMAS: Mapping[str, type[Record]] = {
    "rpopt.window/1": Window,
    "rpopt.packing/1": PackingInstance,
    "rpopt.placement/1": PlacementInstance,
    "rpopt.layout/1": LayoutInstance,
}
JSON_SCHEMAS: Mapping[str, type[Record]] = {
    "rpopt.plan/1": Plan,
    "rpopt.certificate/1": Certificate,
    "rpopt.placement-solution/1": Placement,
    "rpopt.layout-solution/1": Layout,
    "rpopt.packing-solution/1": PackingSolution,
    "rpopt.topology/1": Topology,
    "rpopt.rules/1": PackingRules,
    "rpopt.cost/1": CostModel,
}
_ZIP_STARTS = (b"PK\3\4", b"PK\5\6")
_R = TypeVar("_R", bound=Record)


def write_npz(path: AnyPath, record: Record, *, origin: str = "") -> None:
    """Write a window or an instance.

    Parameters
    ----------
    origin
        Where an instance came from, in words; a window says so itself.

    Raises
    ------
    InstanceError
        When the record is of another type.
    FileFormatError
        When the file cannot be written.
    """
    _check_type(record, NPZ_SCHEMAS, "an .npz file")
    values = record.values()
    header = {
        "schema": record.SCHEMA,
        "digest": record.digest,
        "origin": values.pop("origin", origin),
        "values": values,
    }
    with atomic_writer(path) as file:
        write_npz_members(file, canonical_json(header), record.arrays())


def read_npz(path: AnyPath) -> Record:
    """Return the window or instance in an `.npz` file.

    The arrays are read once into place, so the peak memory is little more than their
    size.

    Raises
    ------
    FileFormatError
        When the file is missing, damaged, tampered with or of an unknown schema.
    """
    with open_npz(path) as archive:
        header = parse_json(read_header(archive))
        _check_keys(header, ("schema", "digest", "origin", "values"))
        kind = _known_type(header["schema"], NPZ_SCHEMAS)
        if not isinstance(header["values"], dict):
            raise FileFormatError("values of the header are not a JSON object")
        data = dict(header["values"])
        if "origin" in {*data, *member_names(archive)}:
            raise FileFormatError("origin occurs twice")
        if issubclass(kind, Window):
            data["origin"] = header["origin"]
        for name in member_names(archive):
            if name in data:
                raise FileFormatError(f"{name} is both an array and a value")
            if name != HEADER:
                data[name] = Member(archive, name).read()
        return _rebuild(kind, data, header["digest"])


def write_json(path: AnyPath, record: Record) -> None:
    """Write a plan, certificate, solution, topology, rules or cost model.

    Raises
    ------
    InstanceError
        When the record is of another type.
    FileFormatError
        When the file cannot be written.
    """
    _check_type(record, JSON_SCHEMAS, "a JSON file")
    content = {"schema": record.SCHEMA, "digest": record.digest}
    write_json_text(path, {**content, "content": plain(record)})


def read_json(path: AnyPath) -> Record:
    """Return the record in a JSON file.

    Raises
    ------
    FileFormatError
        When the file is missing, damaged, tampered with or of an unknown schema.
    """
    with reading(path):
        whole = parse_json(Path(path).read_bytes())
        _check_keys(whole, ("schema", "digest", "content"))
        kind = _known_type(whole["schema"], JSON_SCHEMAS)
        return _rebuild(kind, whole["content"], whole["digest"])


def read(path: AnyPath, kind: type[_R] = Record) -> _R:  # type: ignore[assignment]
    """Return the record in a file of either format.

    Parameters
    ----------
    kind
        The type that is needed; any by default.

    Raises
    ------
    FileFormatError
        When the file cannot be read, or holds another type.
    """
    with reading(path), Path(path).open("rb") as file:
        start = file.read(4)
    record = read_npz(path) if start in _ZIP_STARTS else read_json(path)
    if not isinstance(record, kind):
        raise FileFormatError(
            f"{path}: holds a {type(record).__name__}; a {kind.__name__} is needed"
        )
    return record


def _check_type(
    record: Record, schemas: Mapping[str, type[Record]], container: str
) -> None:
    if schemas.get(record.SCHEMA) is not type(record):
        names = ", ".join(kind.__name__ for kind in schemas.values())
        raise InstanceError(
            f"a {type(record).__name__} does not go into {container}; these do: {names}"
        )


def _check_keys(value: Any, expected: tuple[str, ...]) -> None:
    if not isinstance(value, dict) or set(value) != set(expected):
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise FileFormatError(
            f"needs exactly the keys {sorted(expected)}, found {found}; rpopt did not"
            " write it like this"
        )


def _known_type(schema: Any, schemas: Mapping[str, type[Record]]) -> type[Record]:
    if isinstance(schema, str) and schema in schemas:
        return schemas[schema]
    name = str(schema).partition("/")[0]
    other = next((known for known in schemas if known.startswith(f"{name}/")), None)
    if other is not None:
        raise FileFormatError(
            f"its schema is {schema!r}, this rpopt reads {other!r}; install the version"
            " of rpopt that wrote it"
        )
    raise FileFormatError(
        f"its schema {str(schema)[:80]!r} is unknown; known here are {sorted(schemas)}"
    )


def _rebuild(kind: type[Record], data: Any, digest: Any) -> Record:
    record = record_from_plain(kind, data)
    if record.digest != digest:
        raise FileFormatError(
            f"its content does not match its digest {str(digest)[:12]!r}: it was"
            " changed after it was written; restore it or write it again"
        )
    return record
