"""`rpopt compare`: every baseline, and the user's own schedule, beside the plan."""

import argparse
from pathlib import Path
from typing import Any

from rpopt.cli import output
from rpopt.comparison import Schedule, compare
from rpopt.errors import InstanceError
from rpopt.io import read, read_schedule
from rpopt.plans import Plan
from rpopt.window import Window


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("compare", help="put all baselines beside a plan")
    parser.add_argument("window", type=Path, metavar="WINDOW")
    parser.add_argument("plan", type=Path, metavar="PLAN")
    parser.add_argument(
        "--schedule",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="your own schedule: JSON, sample ids as micro_batches[rank][row]; or what"
        " slime and miles write with --save-debug-train-data (.pt)",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one row per method, the best first."""
    window = read(args.window, Window)
    plan = read(args.plan, Plan)
    schedule = _read_schedule(args.schedule) if args.schedule else None
    rows = [
        {
            "method": entry.method,
            "placement": entry.placement,
            "rows": entry.num_rows,
            "fill": entry.fill,
            "J": entry.j,
            "attention": entry.attention,
            "experts": entry.experts,
            "peak": entry.peak_copies,
            "plan_speedup_%": 100 * (entry.j / plan.j - 1),
            "breaks": entry.breaks,
        }
        for entry in compare(window, plan, schedule)
    ]
    output.log_notes(plan.topology)
    output.print_rows(rows, as_json=args.json)
    return 0


def _read_schedule(paths: list[Path]) -> Schedule:
    if all(path.suffix == ".pt" for path in paths):
        from rpopt.io.readers import slime  # loads torch

        return slime.read_schedule(paths)
    if len(paths) > 1:
        raise InstanceError(
            f"--schedule got {len(paths)} files; only those of miles (.pt) come one per"
            " rank"
        )
    return read_schedule(paths[0])
