"""`rpopt place`: from recorded expert load to a placement and its bounds."""

import argparse
import logging
from pathlib import Path
from typing import Any

import numpy as np

from rpopt.checks import require_feasible
from rpopt.cli import output
from rpopt.errors import FileFormatError
from rpopt.io import read, write_json
from rpopt.io.access import writable_folder
from rpopt.io.model_config import read_model_config
from rpopt.io.readers.expert_load import ExpertLoad, read_expert_load
from rpopt.io.readers.expert_map import is_expert_map, read_expert_map
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.heuristics import eplb, identity, place
from rpopt.placement.instance import PlacementInstance, check, evaluate
from rpopt.plans import Placement, Plan
from rpopt.records import Record


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("place", help="place experts by recorded load")
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="LOAD",
        help="recordings of one model: .pt of SGLang, .json, .csv or .csv.gz",
    )
    parser.add_argument("--ep", type=int, required=True, help="EP size")
    parser.add_argument("--out", type=Path, required=True, help="placement (.json)")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--model", type=Path, help="config.json: checks the layers")
    parser.add_argument(
        "--current",
        type=Path,
        metavar="FILE",
        help="what is in force: a placement, a plan or a map of vllm-ascend",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the placement, and print peaks beside bounds and baselines."""
    current = read_placement(args.current) if args.current else None
    model = read_model_config(args.model) if args.model else None
    load = read_expert_load(args.files, model, progress=not args.quiet)
    instance = PlacementInstance(load_LE=load.load_LE, num_ep_ranks=args.ep)
    writable_folder(args.out.parent)
    placement = place(instance, current=current, seed=args.seed)
    require_feasible(check(instance, placement), "the placement")
    write_json(args.out, placement)
    if model is None:
        logging.getLogger(__name__).info(
            "note: layers without load are left out as dense; %d have load",
            load.layer_ids_L.size,
        )
    layers = _layers(load, instance, placement, current)
    facts = {"file": args.out.name, "passes": load.num_passes, **_sum(layers)}
    output.print_sections({"placement": [facts], "layers": layers}, as_json=args.json)
    return 0


def read_placement(path: Path) -> Placement:
    """Return the placement in a placement, plan or map file.

    Raises
    ------
    FileFormatError
        When the file holds none.
    """
    if is_expert_map(path):
        return read_expert_map(path)
    found = read(path, Record)
    placement = found.placement if isinstance(found, Plan) else found
    if not isinstance(placement, Placement):
        raise FileFormatError(
            f"{path}: holds a {type(found).__name__} without a placement; a placement,"
            " a plan or a map of vllm-ascend is needed"
        )
    return placement


def _layers(
    load: ExpertLoad,
    instance: PlacementInstance,
    placement: Placement,
    current: Placement | None,
) -> list[dict[str, Any]]:
    peaks = {
        "peak": placement,
        "identity": identity(instance),
        "EPLB": eplb(instance),
        **({"current": current} if current else {}),
    }
    columns = {
        "layer": load.layer_ids_L,
        "bound": np.array([bound.value for bound in peak_bounds(instance)]),
        **{name: evaluate(instance, p).peak_L for name, p in peaks.items()},
        **({"moved": placement.num_moved(current)} if current else {}),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _sum(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up all layers but their numbers."""
    names = [name for name in layers[0] if name != "layer"]
    total = {name: sum(layer[name] for layer in layers) for name in names}
    closed = sum(layer["peak"] == layer["bound"] for layer in layers)
    gap = 100 * (total["peak"] / total["bound"] - 1)
    return {"layers": len(layers), "closed": closed, **total, "gap_%": gap}
