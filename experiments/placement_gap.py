"""Placement for the groups that meet, against placement on aggregate demand.

    python -m experiments.placement_gap \
        --config experiments/configs/placement_gap.toml --out runs/placement_gap

Three tables: real routes (fit on one half of the samples, judged on drawn groups of the
other), recorded loads (their domains or recordings are the groups), and the reference
windows (layout after placement against both in turn, at equal total time).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, geometric_mean
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.placement_figure import draw
from experiments.placement_loads import load
from experiments.reference_windows import reference
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.anneal import anneal
from rpopt.anneal.placement import place_window
from rpopt.io.npz import Member, open_npz
from rpopt.io.reference import data_dir
from rpopt.layout.baselines import baselines
from rpopt.layout.bounds import layout_bounds
from rpopt.packing.rows import certify_rows
from rpopt.placement.bounds_window import window_bounds
from rpopt.placement.covariance import place_covariance
from rpopt.placement.heuristics import eplb, identity, lpt, place
from rpopt.placement.instance_covariance import second_moments
from rpopt.placement.instance_window import (
    WindowPlacementInstance,
    check_window,
    evaluate_window,
    sampled_groups,
)
from rpopt.placement.search import relabel
from rpopt.planner_joint import refine
from rpopt.plans import Placement
from rpopt.problems import WindowProblems
from rpopt.records import Int64Array
from rpopt.stop import MaxRuntime

Moments = Int64Array
Method = Callable[[WindowPlacementInstance, Moments], Placement]
SWAPS, WINDOW, COVARIANCE = "LPT + swaps", "window-aware", "covariance"
METHODS: dict[str, Method] = {
    "identity": lambda groups, _: identity(groups.aggregate),
    "EPLB": lambda groups, _: eplb(groups.aggregate),
    "LPT": lambda groups, _: lpt(groups.aggregate),
    SWAPS: lambda groups, _: place(groups.aggregate),
    COVARIANCE: lambda groups, demand_NLE: place_covariance(
        second_moments(demand_NLE, groups.num_ep_ranks), place(groups.aggregate)
    ),
    WINDOW: lambda groups, _: place_window(groups),
}
RECORDINGS = ("deepseek_fp4_1k1k", "deepseek_fp4_1k8k", "deepseek_fp4_8k1k")
LOADS = ("DeepSeek, 3 recordings", "OLMoE, 6 domains")
ALONE, JOINT = "layout after placement", "in turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to run."""

    ep_sizes: tuple[int, ...]
    group_sizes: tuple[int, ...]
    splits: tuple[int, ...]
    fit_groups: int
    judge_groups: int
    load_ep_sizes: tuple[int, ...]
    windows: tuple[str, ...]
    seeds: tuple[int, ...]
    max_runtime_s: float
    table: bool = False


@cache
def routes() -> Int64Array:
    """Return the demand of real samples, [N, L, E]."""
    path = data_dir() / "moe-routing-gptoss20b" / "sample_expert_counts.npz"
    with open_npz(path) as archive:
        return Member(archive, "counts").read().astype(np.int64)


@cache
def halves(split: int) -> tuple[Int64Array, Int64Array]:
    """Return the samples to fit on and those to judge on."""
    order_N = np.random.default_rng(split).permutation(len(routes()))
    return routes()[order_N[::2]], routes()[order_N[1::2]]


@cache
def load_groups(name: str, ep: int) -> WindowPlacementInstance:
    """Return recorded loads as groups."""
    if name == LOADS[0]:
        load_GLE = np.array([load(recording) for recording in RECORDINGS])
    else:
        rows = load("OLMoE-1B-7B-0924")  # domain by domain, three layers each
        load_GLE = rows.reshape(-1, 3, rows.shape[1])
    return WindowPlacementInstance(demand_GLE=load_GLE, num_ep_ranks=ep)


def solve_placement(run: Run, study: Study) -> Outcome:
    """Place with one method; judge on other groups where there are any."""
    ep, size = run.params["ep"], run.params.get("size")
    if size is None:
        fit = judge = load_groups(run.instance, ep)
        demand_NLE = fit.demand_GLE // 1000  # squares of these fit into 64 bits
    else:
        demand_NLE, other_NLE = halves(run.seed)
        fit = sampled_groups(
            demand_NLE,
            group_size=size,
            num_groups=study.fit_groups,
            num_ep_ranks=ep,
            seed=run.seed,
        )
        judge = sampled_groups(
            other_NLE,
            group_size=size,
            num_groups=study.judge_groups,
            num_ep_ranks=ep,
            seed=run.seed,
        )
    began_s = perf_counter()
    placement = METHODS[run.method](fit, demand_NLE)
    runtime_s = perf_counter() - began_s
    at_home = identity(fit.aggregate)
    total, bound = _total(fit, placement), sum(b.value for b in window_bounds(fit))
    judged = evaluate_window(judge, placement)
    return Outcome(
        instance_digest=fit.digest,
        objective=float(judged.total_L.sum() / judged.mean_L.sum()),
        upper=total,
        lower=bound,
        feasible=not check_window(fit, placement),
        termination="done",
        runtime_s=runtime_s,
        metrics={
            "moved": float(relabel(placement, at_home).num_moved(at_home).sum())
            / placement.slot_LE.size
        },
    )


def _total(groups: WindowPlacementInstance, placement: Placement) -> int:
    return int(evaluate_window(groups, placement).total_L.sum())


def solve_window(run: Run, study: Study) -> Outcome:
    """Plan a reference window in one of two ways with the same total time."""
    problems = WindowProblems(*reference(run.instance))
    assert problems.placement is not None
    placement = place(problems.placement)
    rows = certify_rows(problems.packing)
    instance = problems.layout(placement, rows.upper)
    starts = list(baselines(instance, np.array(rows.witness["cell_I"])).values())
    stop = MaxRuntime(study.max_runtime_s)
    bound = max(b.value for b in layout_bounds(instance))
    began_s = perf_counter()
    if run.method == ALONE:
        alone = anneal(
            instance, starts=starts, stop=stop, seed=run.seed, bound_ticks=bound
        )
        ticks = alone.j_ticks
    else:
        ticks = refine(
            problems, placement, instance, starts=starts, stop=stop, seed=run.seed
        ).j_ticks
    return Outcome(
        instance_digest=reference(run.instance).window.digest,
        objective=ticks / instance.unit_ticks,
        upper=ticks,
        lower=None,
        feasible=True,
        termination="time limit",
        runtime_s=perf_counter() - began_s,
    )


def placement_table(records: list[RunRecord], names: tuple[str, ...]) -> list[Any]:
    """One row per instance, EP and group size: means over splits."""
    rows = []
    picked = [r for r in records if r["instance"] in names]
    keys = [(r["instance"], r["params"]["ep"], r["params"].get("size")) for r in picked]
    for key in dict.fromkeys(keys):
        own = [r for r, k in zip(picked, keys, strict=True) if k == key]
        by = {m: [r for r in own if r["method"] == m] for m in METHODS}
        mean = {m: fmean(r["objective"] for r in by[m]) for m in METHODS}
        gain = {m: 1 - mean[m] / mean[SWAPS] for m in METHODS}
        gap = {m: fmean(r["upper"] / r["lower"] - 1 for r in by[m]) for m in METHODS}
        rows.append(
            {
                "loads": key[0],
                "ep": key[1],
                **({} if key[2] is None else {"samples": key[2]}),
                **{m: f"{mean[m]:.3f}" for m in METHODS},
                "lower peaks": f"{100 * gain[WINDOW]:.1f} %",
                "by covariance": f"{100 * gain[COVARIANCE]:.1f} %",
                "gap": f"{100 * gap[SWAPS]:.1f} to {100 * gap[WINDOW]:.1f} %",
                "s": f"{fmean(r['runtime_s'] for r in by[WINDOW]):.2f}",
                "moved": _moved(by[SWAPS], by[WINDOW]),
            }
        )
    return rows


def _moved(*by_method: list[RunRecord]) -> str:
    shares = (fmean(r["metrics"]["moved"] for r in own) for own in by_method)
    return " to ".join(f"{100 * share:.0f}" for share in shares) + " %"


def window_table(records: list[RunRecord]) -> list[Any]:
    """One row per reference window, and the geometric mean."""
    rows, means = [], {ALONE: [], JOINT: []}
    names = dict.fromkeys(r["instance"] for r in records if r["method"] in means)
    for name in names:
        for method, column in means.items():
            j = [
                r["objective"]
                for r in records
                if (r["instance"], r["method"]) == (name, method)
            ]
            column.append(geometric_mean(j))
        rows.append(_window_row(name, *(column[-1] for column in means.values())))
    if rows:
        rows.append(_window_row("geometric mean", *map(geometric_mean, means.values())))
    return rows


def _window_row(name: str, alone: float, joint: float) -> dict[str, str]:
    return {
        "window": name,
        ALONE: f"{alone:.5f}",
        JOINT: f"{joint:.5f}",
        "lower J": f"{100 * (1 - joint / alone):.2f} %",
    }


def runs_of(study: Study) -> list[Run]:
    """Return all runs: routes, loads, reference windows."""
    common = {"problem": "placement", "stop": "default effort"}
    drawn = {"fit": study.fit_groups, "judge": study.judge_groups}
    found = [
        Run(
            instance="gpt-oss-20b",
            method=method,
            seed=split,
            params={"ep": ep, "size": size, **drawn},
            **common,
        )
        for ep in study.ep_sizes
        for size in study.group_sizes
        for split in study.splits
        for method in METHODS
    ]
    found += [
        Run(instance=name, method=method, seed=0, params={"ep": ep}, **common)
        for name in LOADS
        for ep in study.load_ep_sizes
        for method in METHODS
    ]
    stop = f"{study.max_runtime_s:g} s"
    return found + [
        Run(problem="plan", instance=name, method=method, seed=seed, stop=stop)
        for name in study.windows
        for seed in study.seeds
        for method in (ALONE, JOINT)
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    study = read_config(args.config, Study)
    place_window(load_groups(LOADS[1], 4), effort=1)  # compiles before clocks start

    def solve(run: Run) -> Outcome:
        kinds = {"placement": solve_placement, "plan": solve_window}
        return kinds[run.problem](run, study)

    records = run_all(runs_of(study), solve, out=args.out, config=study)
    folder = tables.RESULTS if study.table else args.out
    routed = placement_table(records, ("gpt-oss-20b",))
    for name, rows in (
        ("placement_gap", routed),
        ("placement_gap_loads", placement_table(records, LOADS)),
        ("placement_joint", window_table(records)),
    ):
        if rows:
            tables.write_csv(folder / f"{name}.csv", rows)
            print(tables.markdown(folder / f"{name}.csv"))
    draw(routed, (SWAPS, COVARIANCE, WINDOW), folder / "placement_gap.png")


if __name__ == "__main__":
    main()
