"""`rpopt window`: generate, build, convert or collect windows."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rpopt.cli import output
from rpopt.cli.settings import write_settings
from rpopt.io import write_npz
from rpopt.io.access import writable_folder
from rpopt.io.model_config import read_model_config
from rpopt.io.readers import SOURCES, read_window
from rpopt.io.reference import build_reference_like, data_dir, read_reference
from rpopt.io.route_files import read_routes
from rpopt.io.routes import WindowBuilder
from rpopt.io.synthetic import synthetic_window
from rpopt.window import Window

_STACKS = {source: text for source, (_, text) in SOURCES.items()}
REFERENCE_NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")


def add_parser(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = commands.add_parser("window", help="make windows")
    kinds = parser.add_subparsers(required=True, metavar="KIND")

    generate = _add(kinds, "generate", "a seeded synthetic window", _generate)
    generate.add_argument("--seed", type=int, required=True)
    generate.add_argument("--samples", type=int, default=256)
    generate.add_argument("--layers", type=int, default=24)
    generate.add_argument("--experts", type=int, default=32)
    generate.add_argument("--top-k", type=int, default=4)
    generate.add_argument("--group-size", type=int, default=8, help="samples a prompt")
    generate.add_argument("--max-length", type=int, default=16384, help="tokens")
    generate.add_argument("--no-routes", action="store_true", help="lengths only")

    build = _add(
        kinds, "build", "real routing and lengths from the data folder", _build
    )
    build.add_argument("--seed", type=int, required=True)
    build.add_argument("--samples", type=int, default=512)
    build.add_argument("--token-cap", type=int, required=True)
    build.add_argument("--group-size", type=int, default=8, help="samples a prompt")

    routes = _add(kinds, "from-routes", "count raw routed-expert arrays", _from_routes)
    routes.add_argument("routes", type=Path, metavar="ROUTES", help=".npz or folder")
    routes.add_argument("--top-k", type=int, required=True)
    routes.add_argument("--experts", type=int, required=True)
    routes.add_argument(
        "--moe-layers",
        type=_layer_list,
        metavar="3-60",
        help="absolute numbers of the MoE layers, such as 3-60 or 1,3,5; without it the"
        " arrays carry MoE layers only",
    )

    for source, text in {**_STACKS, "verl": "saved DataProto; a pickle"}.items():
        stack = _add(kinds, f"from-{source}", text, _from_stack)
        stack.add_argument("files", type=Path, nargs="+", metavar="FILE")
        stack.add_argument(
            "--model", type=Path, required=True, help="config.json of the model"
        )
        stack.set_defaults(source=source, trust_pickle=False)
        if source == "verl":
            stack.add_argument(
                "--trust-pickle", action="store_true", help="run the code in the file"
            )

    reference = kinds.add_parser(
        "reference", help="the six reference windows, with their settings"
    )
    reference.add_argument("--out-dir", type=Path, required=True)
    reference.set_defaults(run=_reference)


def _add(
    kinds: Any, name: str, text: str, make: Callable[[argparse.Namespace], Window]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=text)
    parser.add_argument("--out", type=Path, required=True, help="window file (.npz)")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=lambda args: _write(make, args))
    return parser


def _write(make: Callable[[argparse.Namespace], Window], args: Any) -> int:
    writable_folder(args.out.parent)
    window = make(args)
    write_npz(args.out, window, origin=window.origin)
    answer = {
        "file": args.out.name,
        "samples": window.num_samples,
        "tokens": window.total_tokens,
        "routed_tokens": int(window.routed_N.sum()),
        "without_routes": int((window.routed_N == 0).sum()),
        "MoE_layers": window.num_layers,
        "experts": window.num_experts,
        "digest": window.digest[:12],
    }
    output.print_rows([answer], as_json=args.json)
    return 0


def _generate(args: argparse.Namespace) -> Window:
    return synthetic_window(
        seed=args.seed,
        num_samples=args.samples,
        num_layers=args.layers,
        num_experts=args.experts,
        top_k=args.top_k,
        group_size=args.group_size,
        max_length_tokens=args.max_length,
        routes=not args.no_routes,
    )


def _build(args: argparse.Namespace) -> Window:
    return build_reference_like(
        seed=args.seed,
        num_samples=args.samples,
        token_cap=args.token_cap,
        group_size=args.group_size,
    )


def _from_routes(args: argparse.Namespace) -> Window:
    builder = WindowBuilder(
        top_k=args.top_k, num_experts=args.experts, moe_layers=args.moe_layers
    )
    off = args.quiet or not sys.stderr.isatty()
    for sample in tqdm(read_routes(args.routes), desc="samples", disable=off):
        builder.add(sample)
    return builder.window(origin=f"rollout routes of {args.routes.name}")


def _from_stack(args: argparse.Namespace) -> Window:
    window, report = read_window(
        args.source,
        args.files,
        read_model_config(args.model),
        trust_pickle=args.trust_pickle,
        progress=not args.quiet,
    )
    logging.getLogger(__name__).info(
        "note: %d of %d samples and %d further rows have no route",
        report.num_without_routes,
        report.num_samples,
        report.num_missing_rows,
    )
    return window


def _reference(args: argparse.Namespace) -> int:
    writable_folder(args.out_dir)
    for name in output.progress(REFERENCE_NAMES, quiet=args.quiet, what="reference"):
        found = read_reference(data_dir() / "windows-reference", name)
        write_npz(
            args.out_dir / f"{name}.npz", found.window, origin=found.window.origin
        )
        write_settings(args.out_dir / f"{name}.toml", *found[1:])
        print(args.out_dir / f"{name}.npz", args.out_dir / f"{name}.toml")
    return 0


def _layer_list(text: str) -> list[int]:
    layers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        layers += range(int(first), int(last or first) + 1)
    return layers
