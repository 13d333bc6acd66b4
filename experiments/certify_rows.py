"""Certify rows: public bin packing instances, and lengths as RL rollouts have them.

    python -m experiments.certify_rows \
        --config experiments/configs/certify_rows.toml --out runs/certify_rows

Every certificate is rechecked, and a claim that contradicts a proven optimum ends the
study with an error.
"""

import argparse
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from experiments import tables
from experiments.config import read_config
from experiments.lengths import Lengths
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.certifier import certify
from rpopt.io.bpp import BinPacking, read_bin_packing
from rpopt.io.reference import data_dir
from rpopt.packing.instance import PackingInstance
from rpopt.packing.rows import recheck

RPOPT = "rpopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to certify, and for how long.

    Parameters
    ----------
    classes
        Tables of instances with proven optima in the data folder, without ".tsv".
    every
        Take one instance in so many of each class.
    time_limit_s
        Seconds per instance of a class.
    lengths, dp_sizes
        Lengths to pack, each for every number of DP ranks.
    lengths_time_limit_s
        Seconds per instance of these.
    peers, peer_lengths
        Other solvers, and the lengths that they pack too, with dp = 1.
    seed
        Of the searches.
    workers
        Instances at once.
    table
        Name of the committed tables.
    """

    classes: tuple[str, ...] = ()
    every: int = 1
    time_limit_s: float = 20.0
    lengths: tuple[Lengths, ...] = ()
    dp_sizes: tuple[int, ...] = (1,)
    lengths_time_limit_s: float = 20.0
    peers: tuple[str, ...] = ()
    peer_lengths: tuple[Lengths, ...] = ()
    seed: int = 0
    workers: int = 1
    table: str | None = None

    def runs(self) -> list[Run]:
        """Return what is to be computed."""
        known = [
            self._run(name, RPOPT, self.time_limit_s, {"class": folder})
            for folder in self.classes
            for name in list(known_instances(folder))[:: self.every]
        ]
        drawn = [
            self._run(v.name, RPOPT, self.lengths_time_limit_s, params(v, dp))
            for v in self.lengths
            for dp in self.dp_sizes
        ]
        peers = [
            self._run(v.name, peer, self.lengths_time_limit_s, params(v, 1))
            for v in self.peer_lengths
            for peer in self.peers
        ]
        return known + drawn + peers

    def _run(self, name: str, method: str, limit_s: float, params: Any) -> Run:
        return Run(
            problem="rows",
            instance=name,
            method=method,
            seed=self.seed,
            stop=f"{limit_s:g} s",
            params=params,
        )


def params(lengths: Lengths, dp: int) -> dict[str, Any]:
    return {
        "kind": lengths.kind,
        "samples": lengths.samples,
        "token_cap": lengths.token_cap,
        "draw": lengths.seed,
        "dp": dp,
    }


@cache
def known_instances(folder: str) -> dict[str, BinPacking]:
    found = read_bin_packing(data_dir() / f"{folder}.tsv")
    return {instance.name: instance for instance in found}


def build(run: Run) -> tuple[PackingInstance, int | None]:
    """Return the instance and, where one is proven, the optimum."""
    if "class" in run.params:
        found = known_instances(run.params["class"])[run.instance]
        assert found.known_lower == found.known_upper
        return found.instance, found.known_upper
    lengths = Lengths(
        kind=run.params["kind"],
        samples=run.params["samples"],
        token_cap=run.params["token_cap"],
        seed=run.params["draw"],
    )
    return lengths.instance(run.params["dp"]), None


def solve(run: Run) -> Outcome:
    """Certify one instance and recheck the certificate; or ask a peer."""
    instance, optimum = build(run)
    limit_s = float(run.stop.removesuffix(" s"))
    if run.method != RPOPT:
        return _peer(run, instance, limit_s)
    began_s = perf_counter()
    (found,) = certify(instance, time_limit_s=limit_s, seed=run.seed)
    runtime_s = perf_counter() - began_s
    began_s = perf_counter()
    proved = recheck(found, instance)
    wrong = optimum is not None and not found.lower <= optimum <= found.upper
    return Outcome(
        instance_digest=instance.digest,
        objective=float(found.upper),
        upper=found.upper,
        lower=found.lower,
        feasible=True,
        termination=found.termination,
        runtime_s=runtime_s,
        metrics={
            "optimum": optimum,
            "wrong": wrong,
            "arithmetic_lower": proved,
            "bound": found.best_bound.name,
            "recheck_s": perf_counter() - began_s,
        },
    )


def _peer(run: Run, instance: PackingInstance, limit_s: float) -> Outcome:
    from experiments.packing_peers import PEERS  # an extra: only where asked for

    answer = PEERS[run.method](instance, limit_s=limit_s, seed=run.seed)
    return Outcome(
        instance_digest=instance.digest,
        objective=float(answer.upper),
        upper=answer.upper,
        lower=answer.lower,
        feasible=True,
        termination="closed" if answer.lower == answer.upper else "time limit",
        runtime_s=answer.runtime_s,
    )


def class_table(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """One row per class: what was closed, by which evidence, and how fast."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        if "class" in record["params"]:
            name = record["params"]["class"].rpartition("/")[2]
            groups.setdefault(name, []).append(record)
    if len(groups) > 1:
        groups["all"] = [record for group in groups.values() for record in group]
    return [_class_row(name, group) for name, group in groups.items()]


def _class_row(name: str, group: list[RunRecord]) -> dict[str, Any]:
    closed = [r for r in group if r["is_closed"]]
    by_arithmetic = [
        r for r in closed if r["metrics"]["arithmetic_lower"] == r["upper"]
    ]
    seconds = [r["runtime_s"] for r in group]
    return {
        "class": name,
        "instances": len(group),
        "closed": len(closed),
        "by arithmetic": len(by_arithmetic),
        "by solver claim": len(closed) - len(by_arithmetic),
        "optimum found": sum(r["upper"] == r["metrics"]["optimum"] for r in group),
        "wrong claims": sum(r["metrics"]["wrong"] for r in group),
        "median s": f"{statistics.median(seconds):.2f}",
        "max s": f"{max(seconds):.1f}",
        "recheck max s": f"{max(r['metrics']['recheck_s'] for r in group):.2f}",
    }


def lengths_table(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """One row per lengths: rows and seconds for every number of DP ranks."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        given = record["params"]
        if "kind" not in given or record["method"] != RPOPT:
            continue
        row = rows.setdefault(
            record["instance"],
            {
                "lengths": given["kind"],
                "samples": given["samples"],
                "cap": given["token_cap"],
            },
        )
        row[f"rows, dp={given['dp']}"] = _claim(record)
        row[f"s, dp={given['dp']}"] = f"{record['runtime_s']:.1f}"
    return list(rows.values())


def peer_table(records: Iterable[RunRecord]) -> list[dict[str, Any]]:
    """One row per instance that peers were given too (dp = 1)."""
    records = [r for r in records if r["params"].get("dp") == 1]
    shared = {r["instance"] for r in records if r["method"] != RPOPT}
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        name, method = record["instance"], record["method"]
        if name in shared:
            row = rows.setdefault(name, {"lengths": name})
            row[method] = _claim(record)
            row[f"{method}, s"] = f"{record['runtime_s']:.1f}"
    return list(rows.values())


def _claim(record: RunRecord) -> str:
    lower, upper = record["lower"], record["upper"]
    if lower < upper:
        return f"{lower} to {upper}"
    by_solver = record["metrics"].get("arithmetic_lower", upper) < upper
    return f"{upper} (solver)" if by_solver else str(upper)


def refuse_wrong_claims(records: Iterable[RunRecord]) -> None:
    wrong = [r["instance"] for r in records if r["metrics"].get("wrong")]
    if wrong:
        raise SystemExit(f"wrong claims about {', '.join(wrong)}: stop and look")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    records = run_all(
        study.runs(), solve, out=args.out, config=study, workers=study.workers
    )
    refuse_wrong_claims(records)
    found = {
        "": class_table(records),
        "_lengths": lengths_table(records),
        "_peers": peer_table(records),
    }
    for suffix, rows in found.items():
        path = args.out / f"table{suffix}.csv"
        if study.table is not None:
            path = tables.RESULTS / f"{study.table}{suffix}.csv"
        if rows:
            tables.write_csv(path, rows)
            print(tables.markdown(path), end="\n\n")


if __name__ == "__main__":
    main()
