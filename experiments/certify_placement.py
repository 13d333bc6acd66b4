"""Certify placements layer by layer, with CP-SAT and HiGHS beside at equal time.

    python -m experiments.certify_placement \
        --config experiments/configs/certify_placement.toml --out runs/certify_placement

Every layer is an instance of its own. Every certificate is rechecked.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.placement_loads import load
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.certifier import certify
from rpopt.counter import generator
from rpopt.io.reference import WINDOWS, data_dir, read_reference
from rpopt.placement.certificates import recheck
from rpopt.placement.instance import PlacementInstance
from rpopt.records import Int64Array

METHODS = ("certify", "CP-SAT", "HiGHS")
GENERATED = "lognormal"
_STREAM = 0x6C6F6164
_SIGMA, _MEAN = 0.5, 1e5  # of generated loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Layers of one source of loads on so many EP ranks.

    Parameters
    ----------
    load
        A recording, a reference window, or "lognormal" for loads that are drawn.
    ep
        EP ranks.
    layers
        How many layers, evenly spaced, or drawn.
    experts
        Of drawn loads.
    """

    load: str
    ep: int
    layers: int = 6
    experts: int | None = None

    def load_LE(self, seed: int) -> Int64Array:  # noqa: N802
        """Return the loads."""
        if self.load == GENERATED:
            assert self.experts is not None
            rng = generator(seed, _STREAM, self.experts)
            draw_LE = rng.lognormal(0.0, _SIGMA, (self.layers, self.experts))
            return np.rint(_MEAN * draw_LE).astype(np.int64)
        if self.load.startswith("w"):
            window = read_reference(data_dir() / WINDOWS, self.load).window
            assert window.demand_NLE is not None
            every_LE = window.demand_NLE.sum(axis=0, dtype=np.int64)
        else:
            every_LE = load(self.load)
        chosen = np.linspace(0, len(every_LE) - 1, self.layers).round().astype(int)
        return every_LE[chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to certify, and for how long.

    Parameters
    ----------
    cases
        Where loads come from.
    time_limit_s
        Seconds per layer of every method.
    seed
        Of draws and searches.
    table
        Name of the committed table.
    """

    cases: tuple[Case, ...]
    time_limit_s: float = 3.0
    seed: int = 0
    table: str | None = None

    def runs(self) -> list[Run]:
        """Return what is to be computed."""
        return [
            Run(
                problem="placement",
                instance=f"{case.load} {case.experts or ''}".strip(),
                method=method,
                seed=self.seed,
                stop=f"{self.time_limit_s:g} s",
                params={"case": asdict(case), "layer": layer},
            )
            for case in self.cases
            for method in METHODS
            for layer in range(case.layers)
        ]


def solve(run: Run) -> Outcome:
    """Place one layer by one method."""
    case = Case(**run.params["case"])
    load_LE = case.load_LE(run.seed)[run.params["layer"]][None]
    instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=case.ep)
    limit_s = float(run.stop.removesuffix(" s"))
    metrics: dict[str, Any] = {"experts_per_rank": instance.experts_per_rank}
    if run.method == "certify":
        certify(instance, time_limit_s=0)  # compiles before the clock starts
        began_s = perf_counter()
        (found,) = certify(instance, time_limit_s=limit_s, seed=run.seed)
        runtime_s = perf_counter() - began_s
        lower, upper = found.lower, found.upper
        metrics["proved"] = recheck(found, instance)
    else:
        # An extra: only where a peer is asked for.
        from experiments.placement_peers import cp_sat, highs

        answer = (
            highs(instance, limit_s=limit_s)
            if run.method == "HiGHS"
            else cp_sat(instance, limit_s=limit_s, seed=run.seed)
        )
        lower, upper, runtime_s = answer.bound, answer.peak, answer.runtime_s
    return Outcome(
        instance_digest=instance.digest,
        objective=upper,
        upper=upper,
        lower=lower,
        feasible=upper is not None,
        termination="done",
        runtime_s=runtime_s,
        metrics=metrics,
    )


def table(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One row per case: our gaps, and by how much the peers' peaks are larger."""
    cases: dict[tuple[Any, ...], dict[str, list[RunRecord]]] = {}
    for record in records:
        key = (record["instance"], record["params"]["case"]["ep"])
        by_method = cases.setdefault(key, {method: [] for method in METHODS})
        by_method[record["method"]].append(record)
    rows = []
    for (name, ep), by_method in cases.items():
        ours = by_method["certify"]
        gaps = [r["upper"] - r["lower"] for r in ours]
        rows.append(
            {
                "loads": name,
                "ep": ep,
                "experts per rank": ours[0]["metrics"]["experts_per_rank"],
                "layers": len(ours),
                "closed": sum(gap == 0 for gap in gaps),
                "by arithmetic": sum(
                    r["metrics"]["proved"] == r["upper"] for r in ours
                ),
                "largest gap, copies": max(gaps),
                "largest gap, %": f"{100 * max(r['gap'] for r in ours):.4f}",
                "slowest layer, s": f"{max(r['runtime_s'] for r in ours):.1f}",
                **{
                    f"{peer} above, %": _excess(ours, by_method[peer])
                    for peer in METHODS[1:]
                },
            }
        )
    return rows


def _excess(ours: Sequence[RunRecord], theirs: Sequence[RunRecord]) -> str:
    """Return the range over layers of how much larger a peer's peak is."""
    placed = [(r, p) for r, p in zip(ours, theirs, strict=True) if p["upper"]]
    shares = [100 * (p["upper"] / r["upper"] - 1) for r, p in placed]
    missing = len(ours) - len(placed)
    text = f"{min(shares):.4f} to {max(shares):.4f}" if shares else "no placement"
    return text + (f" ({missing} without)" if shares and missing else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    records = run_all(study.runs(), solve, out=args.out, config=study)
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, table(records))
    print(tables.markdown(path))


if __name__ == "__main__":
    main()
