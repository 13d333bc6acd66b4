"""Certify layouts: the reference windows, and windows small enough to close.

    python -m experiments.certify_layout \
        --config experiments/configs/certify_layout.toml --out runs/certify_layout

The placement is the one for aggregate demand, the number of rows the certified one,
and the start comes from a short annealing, which is not on the clock. Every certificate
is rechecked.
"""

import argparse
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.anneal import anneal
from rpopt.certificate import Bound, Certificate
from rpopt.certifier import certify
from rpopt.counter import generator
from rpopt.io.reference import WINDOWS, Reference, data_dir, read_reference
from rpopt.layout.baselines import baselines
from rpopt.layout.certificates import recheck
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.rows import certify_rows
from rpopt.placement.heuristics import place
from rpopt.plans import Layout
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import MaxRuntime
from rpopt.topology import Topology
from rpopt.window import Window

_STREAM = 0x736D616C


@dataclass(frozen=True, slots=True, kw_only=True)
class Small:
    """A window of a few samples and layers of a reference window.

    Parameters
    ----------
    samples
        How many, drawn among those that the token cap admits.
    layers
        Evenly spaced MoE layers to keep.
    dp, ep, rows, token_cap
        What they are laid out for.
    window, seed
        Where they are drawn from, and by which draw.
    """

    samples: int
    layers: int = 2
    dp: int = 4
    ep: int = 2
    rows: int = 1
    token_cap: int = 4096
    window: str = "w1"
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.samples} of {self.window}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to certify, and for how long.

    Parameters
    ----------
    windows, small
        Reference windows by name, and windows cut from them.
    anneal_s, small_anneal_s
        Seconds of annealing before.
    time_limit_s
        Seconds of the certifier.
    seed
        Of the annealing.
    table
        Name of the committed tables.
    """

    windows: tuple[str, ...] = ()
    small: tuple[Small, ...] = ()
    anneal_s: float = 10.0
    small_anneal_s: float = 1.0
    time_limit_s: float = 60.0
    seed: int = 0
    table: str | None = None

    def runs(self) -> list[Run]:
        """Return what is to be computed."""
        stop = f"{self.time_limit_s:g} s"
        given: list[tuple[str, dict[str, Any]]] = [
            (name, {"anneal_s": self.anneal_s}) for name in self.windows
        ]
        for v in self.small:
            params = {"anneal_s": self.small_anneal_s, "small": asdict(v)}
            given.append((v.name, params))
        return [
            Run(
                problem="layout",
                instance=name,
                method="certify",
                seed=self.seed,
                stop=stop,
                params=params,
            )
            for name, params in given
        ]


@cache
def reference(name: str) -> Reference:
    return read_reference(data_dir() / WINDOWS, name)


def cut(small: Small) -> Reference:
    """Return a small window: own topology and cap, the costs of its source."""
    source = reference(small.window)
    window = source.window
    assert window.demand_NLE is not None
    short = np.flatnonzero(window.length_N <= small.token_cap)
    rng = generator(small.seed, _STREAM, small.samples)
    chosen = np.sort(rng.choice(short, small.samples, replace=False))
    layers = np.linspace(0, window.num_layers - 1, small.layers).round().astype(int)
    return Reference(
        Window(
            length_N=window.length_N[chosen],
            demand_NLE=window.demand_NLE[chosen][:, layers],
            top_k=window.top_k,
        ),
        Topology(dp=small.dp, ep=small.ep),
        PackingRules(token_cap=small.token_cap),
        source.cost,
    )


def build(run: Run) -> tuple[LayoutInstance, list[Layout]]:
    """Return the instance under the aggregate placement, and baseline layouts."""
    small = Small(**run.params["small"]) if "small" in run.params else None
    found = reference(run.instance) if small is None else cut(small)
    problems = WindowProblems(*found)
    assert problems.placement is not None
    rows = certify_rows(problems.packing)
    num_rows = rows.upper if small is None else max(small.rows, rows.upper)
    instance = problems.layout(place(problems.placement, seed=0), num_rows)
    packed_I = np.array(rows.witness["cell_I"])
    return instance, list(baselines(instance, packed_I).values())


def solve(run: Run) -> Outcome:
    """Anneal, certify, recheck."""
    instance, starts = build(run)
    stop = MaxRuntime(run.params["anneal_s"])
    start = anneal(instance, starts=starts, stop=stop, seed=run.seed, threads=1).best
    limit_s = float(run.stop.removesuffix(" s"))
    began_s = perf_counter()
    (found,) = certify(instance, start=start, time_limit_s=limit_s, seed=run.seed)
    runtime_s = perf_counter() - began_s
    began_s = perf_counter()
    proved = recheck(found, instance)
    unit = instance.unit_ticks
    return Outcome(
        instance_digest=instance.digest,
        objective=found.upper / unit,
        upper=found.upper,
        lower=found.lower,
        feasible=True,
        termination=found.termination,
        runtime_s=runtime_s,
        metrics={
            "samples": instance.num_items,
            "layers": int(instance.layer_weight_ticks_L.size),
            "dp": instance.num_ranks,
            "ep": int(instance.load_ILP.shape[2]),
            "rows": instance.num_rows,
            "bounds": {b.name: b.value / unit for b in found.bounds},
            "best": [found.best_bound.name, found.best_bound.kind],
            "best_arithmetic": _best_arithmetic(found).name,
            "proved": proved / unit,
            "proved_gap": found.upper / proved - 1,
            "recheck_s": perf_counter() - began_s,
        },
    )


def _best_arithmetic(found: Certificate) -> Bound:
    return max(
        (b for b in found.bounds if b.kind == "arithmetic"), key=lambda b: b.value
    )


def window_table(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """One row per reference window."""
    return [
        {
            "window": r["instance"],
            "samples": r["metrics"]["samples"],
            "dp, ep, rows": _sizes(r),
            "best J known": f"{r['objective']:.4f}",
            "volume bound": f"{r['metrics']['bounds']['volume']:.4f}",
            "over volume": _over_volume(r),
            **_evidence(r),
        }
        for r in records
        if "small" not in r["params"]
    ]


def small_table(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """One row per small window."""
    return [
        {
            "window": r["instance"],
            "layers": r["metrics"]["layers"],
            "dp, ep, rows": _sizes(r),
            "best J known": f"{r['objective']:.4f}",
            "volume bound": f"{r['metrics']['bounds']['volume']:.4f}",
            "closed": _closed(r),
            **_evidence(r),
        }
        for r in records
        if "small" in r["params"]
    ]


def _sizes(record: RunRecord) -> str:
    return ", ".join(str(record["metrics"][name]) for name in ("dp", "ep", "rows"))


def _over_volume(record: RunRecord) -> str:
    """Return what the best arithmetic bound adds to the closed form."""
    metrics = record["metrics"]
    return f"{100 * (metrics['proved'] / metrics['bounds']['volume'] - 1):.2f} %"


def _closed(record: RunRecord) -> str:
    if record["is_closed"]:
        return "yes"
    return "to 1e-6" if record["gap"] <= 1e-6 else "no"


def _evidence(record: RunRecord) -> dict[str, str]:
    """Return the best bound anyone can recompute, and what a solver claims above it."""
    metrics, unit_j = record["metrics"], record["objective"]
    name, kind = metrics["best"]
    claim = metrics["bounds"][name] if kind == "solver" else None
    return {
        "arithmetic bound": f"{metrics['proved']:.4f} ({metrics['best_arithmetic']})",
        "arithmetic gap": f"{100 * metrics['proved_gap']:.2f} %",
        "solver claim": "" if claim is None else f"{claim:.4f} ({name})",
        "gap with it": "" if claim is None else f"{100 * (unit_j / claim - 1):.2f} %",
        "s": f"{record['runtime_s']:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    records = run_all(study.runs(), solve, out=args.out, config=study)
    found = {"": window_table(records), "_small": small_table(records)}
    for suffix, rows in found.items():
        path = args.out / f"table{suffix}.csv"
        if study.table is not None:
            path = tables.RESULTS / f"{study.table}{suffix}.csv"
        if rows:
            tables.write_csv(path, rows)
            print(tables.markdown(path), end="\n\n")


if __name__ == "__main__":
    main()
