"""`rpopt certify`: prove rows, placements, layouts and bin packings."""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rpopt.certificate import Certificate
from rpopt.cli import output
from rpopt.cli.settings import Settings, add_flags, read_settings
from rpopt.errors import InstanceError, RpoptError
from rpopt.io import read, write_json, write_npz
from rpopt.io.access import writable_folder
from rpopt.io.bpp import read_bin_packing
from rpopt.layout.certificates import certified_plan
from rpopt.packing.instance import PackingSolution
from rpopt.packing.rows import recheck
from rpopt.plans import Plan
from rpopt.problems import WindowProblems
from rpopt.window import Window

PROBLEMS = ("rows", "placement", "layout", "bpp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One instance to certify, with a solution to start from, and its plan."""

    name: str
    instance: Any
    time_limit_s: float
    seed: int
    start: Any = None
    plan: Plan | None = None


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("certify", help="prove lower bounds and optima")
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="windows, or bpp files"
    )
    parser.add_argument("--plan", type=Path, help="plan of the one window: start, R")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--time-limit", type=float, required=True, metavar="S", help="per instance"
    )
    parser.add_argument(
        "--cert-dir", type=Path, help="write certificates, instances, plans"
    )
    parser.add_argument("--workers", type=int, default=1, help="instances at once")
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.add_argument(
        "--require-closed", action="store_true", help="exit code 1 if one is open"
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Certify every instance and print a summary row each."""
    if args.workers < 1:
        raise InstanceError(f"--workers {args.workers}; at least one is needed")
    tasks = _tasks(args)
    if args.cert_dir:
        output.require_distinct([task.name for task in tasks], "certificates")
        writable_folder(args.cert_dir)
    rows = []
    bar = tqdm(
        _solved(tasks, args.workers, args.quiet),
        total=len(tasks),
        desc=f"certify {args.problem}",
        disable=args.quiet or not sys.stderr.isatty(),
    )
    for task, certificates, seconds_s in bar:
        rows.append(_summary(task, certificates, seconds_s))
        if args.cert_dir:
            _save(args.cert_dir, task, args.problem, certificates)
    output.print_rows(rows, as_json=args.json)
    is_open = any(row["closed"] < row["problems"] for row in rows)
    return 1 if args.require_closed and is_open else 0


def _tasks(args: argparse.Namespace) -> list[Task]:
    """Read every instance before any is solved, so that bad input ends at once."""
    common: dict[str, Any] = {"time_limit_s": args.time_limit, "seed": args.seed}
    if args.problem == "bpp":
        return [
            Task(name=found.name, instance=found.instance, **common)
            for path in args.files
            for found in read_bin_packing(path)
        ]
    if args.plan is not None and len(args.files) > 1:
        raise InstanceError(
            f"--plan belongs to one window; {len(args.files)} windows were given"
        )
    plan = read(args.plan, Plan) if args.plan else None
    settings = read_settings(args) if plan is None else None
    tasks = []
    for path in args.files:
        window = read(path, Window)
        try:
            instance, start = _instance(args.problem, window, plan, settings)
        except RpoptError as error:
            raise type(error)(f"{path}: {error}") from error
        given = {"instance": instance, "start": start, "plan": plan}
        tasks.append(Task(name=path.stem, **given, **common))
    return tasks


def _instance(
    problem: str, window: Window, plan: Plan | None, settings: Settings | None
) -> tuple[Any, Any]:
    """Return the instance of a window and, from a plan, a start."""
    if plan is not None:
        plan.require_window(window)
        settings = (plan.topology, plan.rules, plan.cost)
    assert settings is not None
    problems = WindowProblems(window, *settings)
    if problem == "rows":
        if plan is None:
            return problems.packing, None
        recheck(plan.rows, problems.packing)
        cell_I = np.array(plan.rows.witness["cell_I"])
        return problems.packing, PackingSolution(cell_I=cell_I)
    if problem == "placement":
        if problems.placement is None:
            raise InstanceError(
                "a window with lengths only has no placement to certify"
            )
        return problems.placement, None if plan is None else plan.placement
    if plan is None:
        raise InstanceError(
            "a layout is certified for a placement and a number of rows; give --plan"
        )
    instance = problems.layout(plan.placement, plan.layout.num_rows)
    return instance, plan.layout


def _solved(
    tasks: list[Task], workers: int, quiet: bool
) -> Iterator[tuple[Task, tuple[Certificate, ...], float]]:
    solve = partial(_solve, quiet=quiet)
    if workers == 1:
        yield from map(solve, tasks)
        return
    lock = multiprocessing.RLock()  # of the terminal
    tqdm.set_lock(lock)
    lines: Any = multiprocessing.Queue()
    for line in range(1, workers + 1):
        lines.put(line)
    with ProcessPoolExecutor(
        workers, initializer=_take_line, initargs=(lock, lines)
    ) as pool:
        yield from pool.map(solve, tasks)


_own_line: int | None = None
"""Of the terminal, for the progress of this process; tqdm chooses when it is None."""


def _take_line(lock: Any, lines: Any) -> None:
    """Give a worker a line of the terminal, the first of which is the parent's."""
    global _own_line
    tqdm.set_lock(lock)
    _own_line = lines.get()


def _solve(task: Task, *, quiet: bool) -> tuple[Task, tuple[Certificate, ...], float]:
    from rpopt.certifier import certify  # loads the formulations

    live = tqdm(
        bar_format="{desc}",
        leave=False,
        position=_own_line,
        disable=quiet or not sys.stderr.isatty(),
    )
    began_s = time.monotonic()
    certificates = certify(
        task.instance,
        start=task.start,
        time_limit_s=task.time_limit_s,
        seed=task.seed,
        progress=lambda lower, upper: live.set_description_str(
            f"{task.name}: {lower} <= optimum <= {upper}"
        ),
    )
    live.close()
    return task, certificates, time.monotonic() - began_s


def _summary(
    task: Task, certificates: tuple[Certificate, ...], seconds_s: float
) -> dict[str, Any]:
    lower = sum(c.lower for c in certificates)
    upper = sum(c.upper for c in certificates)
    kinds = sorted({c.best_bound.kind for c in certificates})
    return {
        "instance": task.name,
        "lower": lower,
        "upper": upper,
        "gap_%": 100 * (upper - lower) / max(1, lower),
        "problems": len(certificates),
        "closed": sum(c.closed for c in certificates),
        "evidence": " and ".join(kinds),
        "best_bound": ", ".join(sorted({c.best_bound.name for c in certificates})),
        "s": seconds_s,
    }


def _save(
    folder: Path, task: Task, problem: str, certificates: tuple[Certificate, ...]
) -> None:
    """Write certificates, the instance to check them against, and a layout's plan."""
    stem = f"{task.name}.{'rows' if problem == 'bpp' else problem}"
    write_npz(folder / f"{stem}.instance.npz", task.instance)
    for certificate in certificates:
        layer = certificate.witness.get("layer")
        middle = "" if layer is None else f".layer{layer}"
        write_json(folder / f"{stem}{middle}.cert.json", certificate)
    if problem == "layout" and task.plan is not None:
        plan = certified_plan(task.plan, certificates[0], task.instance)
        write_json(folder / f"{stem}.plan.json", plan)
