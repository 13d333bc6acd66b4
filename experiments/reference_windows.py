"""Plan, verify and compare the six reference windows: the table of the README.

    python -m experiments.reference_windows \
        --config experiments/configs/reference_windows.toml --out runs/reference_windows
"""

import argparse
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.comparison import compare
from rpopt.io.reference import WINDOWS, Reference, data_dir, read_reference
from rpopt.planner import plan
from rpopt.stop import MaxRuntime, MaxSweeps, StopCriterion
from rpopt.verifier import verify_plan

TABLE = "reference_windows"
STACK_TODAY = ("identity", "Karmarkar-Karp, tokens", "LPT, tokens", "next-fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to run: windows x seeds under one stopping rule."""

    windows: tuple[str, ...]
    seeds: tuple[int, ...]
    max_runtime_s: float | None = None
    max_sweeps: int | None = None
    table: str | None = None

    @property
    def stop(self) -> StopCriterion:
        if self.max_runtime_s is not None:
            return MaxRuntime(self.max_runtime_s)
        return MaxSweeps(self.max_sweeps or 0)

    @property
    def stop_text(self) -> str:
        if self.max_runtime_s is not None:
            return f"{self.max_runtime_s:g} s"
        return f"{self.max_sweeps or 0} sweeps"


@cache
def reference(name: str) -> Reference:
    return read_reference(data_dir() / WINDOWS, name)


def solve(run: Run, stop: StopCriterion) -> Outcome:
    """Plan one window, verify the plan and put the baselines beside it."""
    found = reference(run.instance)
    began_s = perf_counter()
    planned = plan(*found, stop=stop, seed=run.seed)
    runtime_s = perf_counter() - began_s
    verify_plan(found.window, planned)
    baselines = [c for c in compare(found.window, planned) if c.method != "rpopt plan"]
    today = [c for c in baselines if c.placement == STACK_TODAY[0]]
    return Outcome(
        instance_digest=found.window.digest,
        objective=planned.j,
        upper=planned.j_ticks,
        lower=planned.lower_ticks,
        feasible=True,
        termination=planned.termination,
        runtime_s=runtime_s,
        metrics={
            "rows": planned.rows.upper,
            "rows_bound": planned.rows.lower,
            "today": min(c.j for c in today if c.method in STACK_TODAY),
            "baseline": min(c.j for c in baselines),
            "bound": planned.lower_ticks / planned.unit_ticks,
        },
    )


def table(records: list[RunRecord]) -> list[dict[str, Any]]:
    """One row per window: medians over seeds, and the spread of J."""
    rows = []
    for name in dict.fromkeys(record["instance"] for record in records):
        found = reference(name)
        own = [r for r in records if r["instance"] == name]
        j = [r["objective"] for r in own]
        metrics = own[0]["metrics"]
        closed = "=" if metrics["rows"] == metrics["rows_bound"] else ">="
        speed_up = 100 * (metrics["today"] / statistics.median(j) - 1)
        rows.append(
            {
                "window": name,
                "samples": found.window.num_samples,
                "dp, ep": f"{found.topology.dp}, {found.topology.ep}",
                "rows (bound)": f"{metrics['rows']} ({closed} {metrics['rows_bound']})",
                "stacks today": f"{metrics['today']:.4f}",
                "best baseline": f"{metrics['baseline']:.4f}",
                "plan (median)": f"{statistics.median(j):.4f}",
                "plan (min to max)": f"{min(j):.4f} to {max(j):.4f}",
                "bound": f"{metrics['bound']:.4f}",
                "speed-up": f"{speed_up:.1f} %",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    runs = [
        Run(problem="plan", instance=w, method="plan", seed=s, stop=study.stop_text)
        for s in study.seeds
        for w in study.windows
    ]
    records = run_all(
        runs, lambda run: solve(run, study.stop), out=args.out, config=study
    )
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, table(records))
    print(tables.markdown(path))


if __name__ == "__main__":
    main()
