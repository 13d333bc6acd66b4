"""How good annealed layouts are: methods x cases x seeds x time limits.

    python -m experiments.anneal_quality \
        --config experiments/configs/anneal_quality.toml --out runs/anneal_quality

Runs are kept in `out` and computed once, so a study may be stopped and started again;
`--batches 0 2` runs only some batches, and leaves the tables alone.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments import anneal_figure, anneal_tables, tables
from experiments.anneal_cases import Generated
from experiments.anneal_methods import Source, solve
from experiments.config import read_config
from experiments.runner import Outcome, Run, run_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Every method on every case with every seed and time limit.

    Parameters
    ----------
    methods, cases, seeds, limits_s
        What is combined.
    clock
        "cpu": the annealing's limits are seconds of CPU time, for shared machines;
        "wall": of wall time.
    threads
        For each run.
    workers
        Runs at the same time.
    """

    methods: tuple[str, ...]
    cases: tuple[str, ...]
    seeds: tuple[int, ...]
    limits_s: tuple[float, ...]
    clock: str = "cpu"
    threads: int = 1
    workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to run.

    Parameters
    ----------
    batches
        One after the other.
    generated
        Synthetic cases; all other names are reference windows.
    table
        What the names of the committed tables begin with; None keeps them in `out`.
    """

    batches: tuple[Batch, ...]
    generated: tuple[Generated, ...] = ()
    table: str | None = None


def runs_of(batch: Batch) -> list[Run]:
    """Return the runs; methods alternate, so that all meet the same disturbances."""
    return [
        Run(
            problem="layout",
            instance=name,
            method=method,
            seed=seed,
            stop=f"{limit_s:g} s",
            params={"limit_s": limit_s, "clock": batch.clock},
            threads=batch.threads,
        )
        for limit_s in batch.limits_s
        for name in batch.cases
        for seed in batch.seeds
        for method in batch.methods
    ]


def _solve(sources: dict[str, Generated], run: Run) -> Outcome:
    source: Source = sources.get(run.instance, run.instance)
    return solve(source, run)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="+", help="their numbers")
    args = parser.parse_args(argv)
    study = read_config(args.config, Study)
    one = partial(_solve, {source.name: source for source in study.generated})
    chosen = range(len(study.batches)) if args.batches is None else args.batches
    records = {}
    for number in chosen:
        batch = study.batches[number]
        out = args.out / f"batch{number}"
        for record in run_all(
            runs_of(batch), one, out=out, config=study, workers=batch.workers
        ):
            key = (record["instance"], record["method"], record["seed"], record["stop"])
            records.setdefault((*key, record["threads"]), record)
    if args.batches is not None:
        return
    folder = args.out if study.table is None else tables.RESULTS
    prefix = "anneal" if study.table is None else study.table
    names = {source.name for source in study.generated}
    found = anneal_tables.Records(list(records.values()))
    for name, rows in anneal_tables.all_tables(found, names).items():
        if rows:
            tables.write_csv(folder / f"{prefix}_{name}.csv", rows)
    windows = [name for name in found.best if name not in names]
    anneal_figure.draw(found, windows, folder / f"{prefix}_gaps.png")


if __name__ == "__main__":
    main()
