"""Speed and memory of the planner's parts, each as a ratio to the bar it must keep.

python -m experiments.speed --config experiments/configs/speed.toml --out runs/speed
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.placement_loads import load
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.cost import CostModel
from rpopt.io.reference import build_reference_like
from rpopt.io.synthetic import synthetic_window
from rpopt.layout.baselines import attention_lpt
from rpopt.layout.evaluate import evaluate
from rpopt.packing.rows import certify_rows
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.heuristics import identity, place
from rpopt.placement.instance import PlacementInstance
from rpopt.placement.instance import evaluate as evaluate_placement
from rpopt.planner import plan
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology

COST = CostModel(omega="1/2")
RULES = PackingRules(token_cap=32768)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """How often each part is timed, and the size of the large window."""

    repeats: int
    large_samples: int
    large_layers: int
    large_experts: int
    table: str | None = None


def evaluation(run: Run) -> Callable[[], Any]:
    window = synthetic_window(
        seed=0, num_samples=1024, num_layers=24, num_experts=32, top_k=4
    )
    problems = WindowProblems(window, Topology(dp=32, ep=32), RULES, COST)
    rows = certify_rows(problems.packing).upper
    assert problems.placement is not None
    instance = problems.layout(identity(problems.placement), rows)
    layout = attention_lpt(instance)
    assert layout is not None
    return lambda: evaluate(instance, layout)


def rows_certificate(run: Run) -> Callable[[], Any]:
    window = build_reference_like(seed=0, num_samples=4096, token_cap=32768)
    problems = WindowProblems(window, Topology(dp=16, ep=8), RULES, COST)
    return lambda: certify_rows(problems.packing)


def placement(run: Run) -> Callable[[], Any]:
    instance = PlacementInstance(load_LE=load("deepseek_fp4_1k1k"), num_ep_ranks=16)
    bound_L = np.array([bound.value for bound in peak_bounds(instance)])

    def solve() -> None:
        found = evaluate_placement(instance, place(instance)).peak_L
        assert np.mean(found <= 1.01 * bound_L) >= 0.98

    return solve


PARTS: dict[str, tuple[Callable[[Run], Callable[[], Any]], float]] = {
    "evaluate a layout, 1024 x 24 x 32": (evaluation, 0.005),
    "certify rows, 4,096 R1-like samples": (rows_certificate, 1.0),
    "place 58 x 256 experts on 16 ranks": (placement, 1.0),
}
LARGE = "plan the large window, peak memory"
LARGE_BAR_BYTES = 4 * 2**30


def peak_bytes(samples: int, layers: int, experts: int) -> int:
    """Plan one large window and return the largest resident memory of this process."""
    window = synthetic_window(
        seed=0,
        num_samples=samples,
        num_layers=layers,
        num_experts=experts,
        top_k=8,
    )
    topology = Topology(dp=64, ep=32)
    plan(window, topology, RULES, COST, stop=MaxSweeps(2), seed=0)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def solve(run: Run) -> Outcome:
    """Measure one part; the objective is its median over its bar."""
    began_s = perf_counter()
    if run.method == LARGE:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            values = [pool.apply(peak_bytes, tuple(run.params.values()))]
        bar = float(LARGE_BAR_BYTES)
    else:
        prepare, bar = PARTS[run.method]
        measured = prepare(run)
        measured()  # compiles and fills caches
        values = [_seconds(measured) for _ in range(run.params["repeats"])]
    ratios = [value / bar for value in values]
    return Outcome(
        instance_digest="",
        objective=statistics.median(ratios),
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=perf_counter() - began_s,
        metrics={"min": min(ratios), "max": max(ratios), "count": len(ratios)},
    )


def _seconds(measured: Callable[[], Any]) -> float:
    began_s = perf_counter()
    measured()
    return perf_counter() - began_s


def table(records: list[RunRecord]) -> list[dict[str, Any]]:
    bars = {**{name: f"{bar:g} s" for name, (_, bar) in PARTS.items()}, LARGE: "4 GiB"}
    return [
        {
            "part": record["method"],
            "bar": bars[record["method"]],
            "share of the bar (median)": f"{record['objective']:.2f}",
            "min to max": f"{record['metrics']['min']:.2f} to"
            f" {record['metrics']['max']:.2f}",
            "repeats": record["metrics"]["count"],
        }
        for record in records
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    size = {
        "samples": study.large_samples,
        "layers": study.large_layers,
        "experts": study.large_experts,
    }
    repeats: dict[str, Any] = {"repeats": study.repeats}
    runs = [
        Run(
            problem="speed",
            instance="",
            method=name,
            seed=0,
            stop="none",
            params=size if name == LARGE else repeats,
        )
        for name in (*PARTS, LARGE)
    ]
    records = run_all(runs, solve, out=args.out, config=study)
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, table(records))
    print(tables.markdown(path))


if __name__ == "__main__":
    main()
