"""`rpopt export`: a plan in the formats that stacks and engines load."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rpopt.cli import output
from rpopt.errors import InstanceError
from rpopt.io import read
from rpopt.io.access import writable_folder
from rpopt.io.model_config import read_model_config
from rpopt.io.writers import deepseek, micro_batches, sglang, vllm, vllm_ascend
from rpopt.plans import Placement, Plan
from rpopt.records import Record
from rpopt.window import Window

_MAPS: dict[str, tuple[Callable[..., None], str]] = {
    "sglang": (sglang.write_map, "SGLang --init-expert-location (.json)"),
    "vllm": (vllm.write_map, "vLLM initial_expert_map_path, proposed (.json)"),
    "vllm-ascend": (vllm_ascend.write_map, "vllm-ascend expert_map_path (.json)"),
    "deepseek": (deepseek.write_maps, "phy2log, log2phy, logcnt of EPLB (.npz)"),
}


def add_parser(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = commands.add_parser("export", help="write what stacks and engines load")
    formats = parser.add_subparsers(required=True, metavar="FORMAT")
    for name, (write, text) in _MAPS.items():
        expert_map = formats.add_parser(name, help=text)
        expert_map.add_argument(
            "plan", type=Path, metavar="PLAN", help="a plan, or a placement"
        )
        _add_out(expert_map)
        expert_map.add_argument(
            "--model",
            type=Path,
            required=name == "sglang",
            help="config.json of the model, to check its layers",
        )
        expert_map.add_argument(
            "--ep", type=int, metavar="N", help="EP ranks of the engine, to check them"
        )
        expert_map.set_defaults(run=_export_map, write=write)
    order = formats.add_parser(
        "micro-batches", help="sample ids per rank and row, and where each went"
    )
    order.add_argument("plan", type=Path, metavar="PLAN")
    order.add_argument("--window", type=Path, required=True, help="the plan's window")
    _add_out(order)
    order.set_defaults(run=_export_micro_batches)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="answer in JSON")


def _export_map(args: argparse.Namespace) -> int:
    placement = _placement(args.plan)
    model = read_model_config(args.model) if args.model else None
    writable_folder(args.out.parent)
    args.write(args.out, placement, model, ep_size=args.ep)
    assert placement is not None
    num_layers, num_experts = placement.slot_LE.shape
    answer = {
        "file": args.out.name,
        "MoE_layers": num_layers,
        "experts": num_experts,
        "ep": placement.num_ep_ranks,
    }
    output.print_rows([answer], as_json=args.json)
    return 0


def _export_micro_batches(args: argparse.Namespace) -> int:
    plan, window = read(args.plan, Plan), read(args.window, Window)
    writable_folder(args.out.parent)
    micro_batches.write_order(args.out, plan, window)
    answer = {
        "file": args.out.name,
        "dp": plan.topology.dp,
        "rows": plan.layout.num_rows,
        "samples": window.num_samples,
        "dropped": int((plan.cell_of_sample(window)[0] < 0).sum()),
    }
    output.print_rows([answer], as_json=args.json)
    return 0


def _placement(path: Path) -> Placement | None:
    found = read(path, Record)
    if isinstance(found, Plan):
        return found.placement
    if isinstance(found, Placement):
        return found
    raise InstanceError(
        f"{path} holds a {type(found).__name__}; a plan or a placement is exported"
    )
