"""`rpopt calibrate`: a cost model from measured times."""

import argparse
import logging
from pathlib import Path
from typing import Any

from rpopt.calibration import Fit, attention_share, cost_from_fits, fit
from rpopt.cli import output
from rpopt.cli.settings import write_cost
from rpopt.io.measurements import read_measurements

_NS = 10**9


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "calibrate", help="fit c1, c2, the cost of a token copy and omega to times"
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="CSV or JSONL of times; every file is fitted alone, coefficients add up",
    )
    parser.add_argument("--top-k", type=int, help="experts per token")
    parser.add_argument("--moe-layers", type=int, default=1, help="for omega")
    parser.add_argument(
        "--attention-layers",
        type=int,
        default=1,
        help="multiply attention by this when one layer was measured",
    )
    parser.add_argument(
        "--length", type=int, default=4096, help="sample length for omega, in tokens"
    )
    parser.add_argument(
        "--min-tokens", type=int, default=0, help="leave out smaller kernels"
    )
    parser.add_argument("--out", type=Path, help="write the [cost] table to this TOML")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one row per fit and the cost model they make together."""
    fits = [
        fit(read_measurements(file, top_k=args.top_k, min_tokens=args.min_tokens))
        for file in args.files
    ]
    sections: dict[str, list[dict[str, Any]]] = {"fits": [_row(f) for f in fits]}
    if any(f.coefficients["copies"] for f in fits):
        cost = cost_from_fits(fits, num_attention_layers=args.attention_layers)
        model: dict[str, Any] = {
            "c1_ns": float(cost.attention[0].c1 * _NS),
            "c2_ns": float(cost.attention[0].c2 * _NS),
            "expert_per_copy_ns": float(cost.expert_per_copy * _NS),
        }
        if args.top_k is not None:
            model[f"omega_at_{args.length}_tokens"] = attention_share(
                cost,
                length_tokens=args.length,
                num_moe_layers=args.moe_layers,
                top_k=args.top_k,
            )
        sections["cost model"] = [model]
        if args.out is not None:
            write_cost(args.out, cost)
    else:
        logging.getLogger(__name__).info("note: no times of experts, so no cost model")
    output.print_sections(sections, as_json=args.json)
    return 0


def _row(fitted: Fit) -> dict[str, Any]:
    return {
        "file": fitted.name,
        "measurements": fitted.num_measurements,
        **{f"{name}_ns": v * _NS for name, v in fitted.coefficients.items()},
        "R2": fitted.r_squared,
        "median_error": fitted.median_error,
        "p90_error": fitted.p90_error,
    }
