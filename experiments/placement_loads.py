"""Placement alone on recorded expert loads: DeepSeek-R1 and OLMoE.

    python -m experiments.placement_loads \
        --config experiments/configs/placement_loads.toml --out runs/placement_loads
"""

import argparse
import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.io.reference import data_dir
from rpopt.placement.bounds import decisive_experts, peak_bounds
from rpopt.placement.heuristics import eplb, identity, lpt, place
from rpopt.placement.instance import PlacementInstance, evaluate
from rpopt.plans import Placement

METHODS: dict[str, Callable[[PlacementInstance], Placement]] = {
    "identity": identity,
    "EPLB": eplb,
    "LPT": lpt,
    "rpopt": place,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to run: loads x expert-parallel sizes."""

    loads: tuple[str, ...]
    ep_sizes: tuple[int, ...]
    table: str | None = None


@cache
def load(name: str) -> np.ndarray:
    """Return the loads of every layer (or layer and domain), int64 [L, E]."""
    if name.startswith("deepseek"):
        path = data_dir() / "moe-load-deepseek-srtslurm" / f"{name}.csv.gz"
        with gzip.open(path, "rt") as file:
            return np.array([row[1:] for row in csv.reader(file)][1:], dtype=np.int64)
    with (data_dir() / "moe-load-olmoe-mixtral" / "expert_counts.csv").open() as file:
        rows = [row[3:] for row in csv.reader(file) if row[0] == name]
    return np.array(rows, dtype=np.int64)


def solve(run: Run) -> Outcome:
    """Place every layer with one method."""
    instance = PlacementInstance(
        load_LE=load(run.instance), num_ep_ranks=run.params["ep"]
    )
    bound_L = np.array([bound.value for bound in peak_bounds(instance)])
    METHODS[run.method](instance)  # compiles before the clock starts
    began_s = perf_counter()
    placement = METHODS[run.method](instance)
    runtime_s = perf_counter() - began_s
    cost = evaluate(instance, placement)
    mean_L = cost.load_LP.mean(axis=1)
    return Outcome(
        instance_digest=instance.digest,
        objective=float(cost.peak_over_mean_L.mean()),
        upper=int(cost.peak_L.sum()),
        lower=int(bound_L.sum()),
        feasible=True,
        termination="done",
        runtime_s=runtime_s,
        metrics={
            "layers": int(bound_L.size),
            "bound": float((bound_L / mean_L).mean()),
            "within_1_percent": float((cost.peak_L <= 1.01 * bound_L).mean()),
            "closed": float((cost.peak_L == bound_L).mean()),
            "decisive": len(decisive_experts(instance)),
        },
    )


def table(records: list[RunRecord]) -> list[dict[str, Any]]:
    """One row per load and size: peak over mean of each method, and the bound."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        key = (record["instance"], record["params"]["ep"])
        row = rows.setdefault(key, {"load": key[0], "ep": key[1]})
        row["layers"] = record["metrics"]["layers"]
        row[record["method"]] = f"{record['objective']:.4f}"
        if record["method"] == "rpopt":
            metrics = record["metrics"]
            row["bound"] = f"{metrics['bound']:.4f}"
            row["within 1 %"] = f"{100 * metrics['within_1_percent']:.0f} %"
            row["closed"] = f"{100 * metrics['closed']:.0f} %"
            row["set by one expert"] = metrics["decisive"]
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    runs = [
        Run(
            problem="placement",
            instance=name,
            method=method,
            seed=0,
            stop="default effort",
            params={"ep": ep},
        )
        for name in study.loads
        for ep in study.ep_sizes
        for method in METHODS
    ]
    records = run_all(runs, solve, out=args.out, config=study)
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, table(records))
    print(tables.markdown(path))


if __name__ == "__main__":
    main()
