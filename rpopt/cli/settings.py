"""Topology, packing rules and cost model from a TOML file and flags.

The file has the tables [topology], [rules] and [cost], whose keys are the fields of
`Topology`, `PackingRules` and `CostModel` (numbers may be written "1/32768"); [cost]
may instead name a `preset`. A flag wins over the file.
"""

import argparse
import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import InstanceError
from rpopt.io.access import atomic_writer
from rpopt.presets import preset, preset_names
from rpopt.records import plain
from rpopt.rules import MissingRoutes, Oversize, PackingRules, RowOrder
from rpopt.topology import Coupling, Topology

Settings = tuple[Topology, PackingRules, CostModel]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of topology, rules and cost to a parser."""
    parser.add_argument("--config", type=Path, help="TOML: [topology] [rules] [cost]")
    group = parser.add_argument_group("topology")
    for name in ("dp", "ep", "tp", "cp", "pp", "etp"):
        group.add_argument(f"--{name}", type=int, help=f"{name.upper()} size")
    group.add_argument("--coupling", choices=get_args(Coupling))
    group = parser.add_argument_group("packing rules")
    group.add_argument("--token-cap", type=int, help="padded tokens per cell")
    group.add_argument("--pad-multiple", type=int, help="pad each sample to this")
    group.add_argument("--row-multiple", type=int, help="rows come in this multiple")
    group.add_argument("--max-samples-per-cell", type=int)
    group.add_argument("--oversize", choices=get_args(Oversize))
    group.add_argument("--dummies", action="store_const", const=True)
    group.add_argument("--missing-routes", choices=get_args(MissingRoutes))
    group.add_argument("--row-order", choices=get_args(RowOrder))
    group = parser.add_argument_group("cost model")
    group.add_argument("--preset", help="one of: " + ", ".join(preset_names()))
    group.add_argument("--c1", help="attention cost per token")
    group.add_argument("--c2", help="attention cost per squared token")
    group.add_argument("--omega", help="attention share in [0, 1]")


def read_settings(args: argparse.Namespace) -> Settings:
    """Return topology, rules and cost model of a command.

    Raises
    ------
    InstanceError
        For an unknown table or key, or a missing number.
    """
    tables = _read_tables(args.config) if args.config else {}
    topology = _merge(tables.get("topology", {}), args, Topology, ("dp", "ep"))
    rules = _merge(tables.get("rules", {}), args, PackingRules, ("token_cap",))
    return Topology(**topology), PackingRules(**rules), _cost(tables, args)


def write_settings(
    path: Path, topology: Topology, rules: PackingRules, cost: CostModel
) -> None:
    """Write settings that `read_settings` reads back.

    A shard map that follows from the sizes is left out, so that a flag can change them.
    """
    sizes = replace(topology, shard_of_rank_D=None)
    derived = {"shard_of_rank_D"} if sizes == topology else set()
    tables = {"topology": plain(topology), "rules": plain(rules), "cost": plain(cost)}
    for key in derived:
        del tables["topology"][key]
    _write_tables(path, tables)


def write_cost(path: Path, cost: CostModel) -> None:
    """Write a settings file with the table [cost] only."""
    _write_tables(path, {"cost": plain(cost)})


def _write_tables(path: Path, tables: dict[str, dict[str, Any]]) -> None:
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        given = {key: value for key, value in table.items() if value is not None}
        lines += [f"{key} = {_toml(value)}" for key, value in given.items()]
        lines.append("")
    with atomic_writer(path) as file:
        file.write("\n".join(lines).encode())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value)


def _read_tables(path: Path) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InstanceError(f"{path} is not valid TOML: {error}") from error
    allowed = {
        "topology": {f.name for f in fields(Topology)},
        "rules": {f.name for f in fields(PackingRules)},
        "cost": {f.name for f in fields(CostModel)} | {"preset", "c1", "c2"},
    }
    for table, content in tables.items():
        if table not in allowed or not isinstance(content, dict):
            raise InstanceError(f"{path}: unknown table [{table}]; use {[*allowed]}")
        for key in content:
            if key not in allowed[table]:
                raise InstanceError(
                    f"{path}: unknown key {key!r} in [{table}]; known keys are"
                    f" {sorted(allowed[table])}"
                )
    return tables


def _merge(
    table: dict[str, Any],
    args: argparse.Namespace,
    kind: type[Topology] | type[PackingRules],
    required: tuple[str, ...],
) -> dict[str, Any]:
    merged = dict(table)
    for name in (f.name for f in fields(kind)):
        value = getattr(args, name, None)
        if value is not None:
            merged[name] = value
    for name in required:
        if name not in merged:
            flag = "--" + name.replace("_", "-")
            raise InstanceError(f"{name} is missing; give {flag} or a --config file")
    return merged


def _cost(tables: dict[str, dict[str, Any]], args: argparse.Namespace) -> CostModel:
    table = dict(tables.get("cost", {}))
    for name in ("preset", "c1", "c2", "omega"):
        if getattr(args, name) is not None:
            table[name] = getattr(args, name)
    name = table.pop("preset", None)
    if name is not None:
        base = preset(name)
        if set(table) - {"omega"}:
            raise InstanceError(
                f"preset {name!r} already sets {sorted(set(table) - {'omega'})}; give"
                " either the preset or the numbers"
            )
        known = {f.name: getattr(base, f.name) for f in fields(CostModel)}
        return CostModel(**{**known, **table})
    if not table:
        raise InstanceError(
            "the cost model is missing; give --preset, or --c1, --c2 and --omega, or"
            " [cost] in a --config file"
        )
    simple = {k: table.pop(k) for k in ("c1", "c2") if k in table}
    if simple and "attention" in table:
        raise InstanceError(
            "[cost] has c1 or c2 beside attention classes; give one form"
        )
    if simple:
        table["attention"] = (AttentionClass(**simple),)
    elif "attention" in table:
        table["attention"] = _attention_classes(table["attention"])
    if not isinstance(table.get("layer_weight_L", []), list):
        raise InstanceError("layer_weight_L in [cost] must be a list of numbers")
    return CostModel(**table)


def _attention_classes(entries: Any) -> tuple[AttentionClass, ...]:
    known = {f.name for f in fields(AttentionClass)}
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and set(entry) <= known for entry in entries
    ):
        raise InstanceError(
            f"attention in [cost] must be a list of tables with keys {sorted(known)},"
            f" got {entries!r}"
        )
    return tuple(AttentionClass(**entry) for entry in entries)
