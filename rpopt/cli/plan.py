"""`rpopt plan`: from windows to checked plans."""

import argparse
import time
from pathlib import Path
from typing import Any

from rpopt.cli import output
from rpopt.cli.history import write_history
from rpopt.cli.settings import add_flags, read_settings
from rpopt.errors import InstanceError, RpoptError
from rpopt.io import read, write_json, write_npz
from rpopt.io.access import writable_folder
from rpopt.packing.instance import PackingSolution
from rpopt.plans import Plan
from rpopt.problems import WindowProblems
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion
from rpopt.window import Window


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("plan", help="plan one or more windows")
    parser.add_argument("windows", type=Path, nargs="+", metavar="WINDOW")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for plans")
    parser.add_argument("--seed", type=int, required=True)
    add_stop_flags(parser)
    parser.add_argument("--start", type=Path, metavar="PLAN", help="start from a plan")
    parser.add_argument(
        "--current", type=Path, metavar="PLAN", help="placement in force"
    )
    parser.add_argument(
        "--save-instances", action="store_true", help="write the three instances too"
    )
    parser.add_argument(
        "--save-history",
        action="store_true",
        help="write seconds and best J too, for show --plot",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    add_flags(parser)
    parser.set_defaults(run=run)


def add_stop_flags(parser: argparse.ArgumentParser) -> None:
    """Add the stop criteria to a parser."""
    group = parser.add_argument_group("stopping (at least one)")
    group.add_argument(
        "--max-runtime", type=float, metavar="S", help="seconds a window"
    )
    group.add_argument("--max-sweeps", type=int, metavar="N", help="annealing sweeps")


def read_stop(args: argparse.Namespace) -> StopCriterion:
    """Return the stop criterion of a command."""
    criteria: list[StopCriterion] = []
    if args.max_runtime is not None:
        criteria.append(MaxRuntime(args.max_runtime))
    if args.max_sweeps is not None:
        criteria.append(MaxSweeps(args.max_sweeps))
    if not criteria:
        raise InstanceError("no stop criterion; give --max-runtime or --max-sweeps")
    return criteria[0] if len(criteria) == 1 else FirstOf(criteria)


def run(args: argparse.Namespace) -> int:
    """Plan every window and print a summary row each."""
    settings = read_settings(args)
    stop = read_stop(args)
    output.require_distinct([path.stem for path in args.windows], "plans")
    starts = [read(args.start, Plan)] if args.start else []
    current = read(args.current, Plan).placement if args.current else None
    writable_folder(args.out_dir)
    output.log_notes(settings[0])
    from rpopt.planner import plan  # loads the annealing engines

    rows = []
    bar = output.progress(args.windows, quiet=args.quiet, what="plan")
    for path in bar:
        window = read(path, Window)
        began_s = time.perf_counter()
        history: list[tuple[float, float]] = []

        def note(seconds_s: float, j: float, history: Any = history) -> None:
            history.append((seconds_s, j))
            bar.set_postfix_str(f"J {j:.4f}")

        try:
            found = plan(
                window,
                *settings,
                stop=stop,
                seed=args.seed,
                starts=starts,
                current=current,
                progress=note,
            )
        except RpoptError as error:
            raise type(error)(f"{path}: {error}") from error
        seconds_s = time.perf_counter() - began_s
        write_json(args.out_dir / f"{path.stem}.plan.json", found)
        if args.save_history:
            write_history(args.out_dir / f"{path.stem}.history.csv", history)
        if args.save_instances:
            _save_instances(args.out_dir, path.stem, window, found)
        rows.append({"window": path.stem, **summary(window, found), "s": seconds_s})
    output.print_rows(rows, as_json=args.json)
    return 0


def summary(window: Window, plan: Plan) -> dict[str, Any]:
    """Return the numbers of one summary row."""
    lower = plan.lower_ticks
    return {
        "samples": window.num_samples,
        "tokens": window.total_tokens,
        "rows": plan.rows.upper,
        "rows_bound": plan.rows.lower,
        "rows_closed": plan.rows.closed,
        "J": plan.j,
        "J_bound": lower / plan.unit_ticks,
        "gap_%": 100 * (plan.j_ticks / lower - 1) if lower else None,
        "efficiency": 1 / plan.j,
    }


def _save_instances(folder: Path, stem: str, window: Window, plan: Plan) -> None:
    problems = WindowProblems(window, plan.topology, plan.rules, plan.cost)
    write_npz(folder / f"{stem}.packing.npz", problems.packing)
    packed = PackingSolution(cell_I=plan.rows.witness["cell_I"])
    write_json(folder / f"{stem}.packing-solution.json", packed)
    if problems.placement is not None and plan.placement is not None:
        write_npz(folder / f"{stem}.placement.npz", problems.placement)
        write_json(folder / f"{stem}.placement-solution.json", plan.placement)
    layout = problems.layout(plan.placement, plan.layout.num_rows)
    write_npz(folder / f"{stem}.layout.npz", layout)
    write_json(folder / f"{stem}.layout-solution.json", plan.layout)
