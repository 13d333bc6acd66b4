"""Which kinds of moves matter: the annealing with each kind left out, at equal time.

    python -m experiments.anneal_moves --out experiments/results/anneal_moves.csv

Attempts of the kind that is left out become swaps ("no swap": relocations). Runs of one
seed and case follow each other; limits count the CPU seconds of one thread, so that a
shared machine slows all alike.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from tqdm import tqdm

from experiments.anneal_cases import Generated, case
from experiments.anneal_methods import Source, cpu_clock
from experiments.tables import Row, write_csv
from rpopt.anneal import anneal, tables
from rpopt.anneal.moves import PATTERN, Kind
from rpopt.stop import MaxRuntime

ALL = "all kinds"
PATTERNS = {
    ALL: PATTERN,
    **{
        f"no {kind.name.lower()}": tuple(
            (Kind.RELOCATE if kind == Kind.SWAP else Kind.SWAP) if k == kind else k
            for k in PATTERN
        )
        for kind in Kind
    },
}
CASES: tuple[Source, ...] = (
    *("w1", "w2", "w3", "w4", "w5", "w6"),
    Generated(name="64 short", samples=64, dp=8, ep=4, token_cap=8192, tail="short"),
    Generated(name="256 wide", samples=256, dp=16, ep=16, token_cap=16384, layers=24),
    Generated(name="1024 tight", samples=1024, dp=16, ep=8, token_cap=8464),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--limit", type=float, default=1.0)
    options = parser.parse_args(argv)
    rows = [
        ablation(source, options.limit, options.seeds)
        for source in tqdm(CASES, desc="cases")
    ]
    write_csv(options.out, rows)


def ablation(source: Source, limit_s: float, seeds: int) -> Row:
    """Return J relative to that with all kinds, geometric mean over seeds and range."""
    j = {
        name: [_run(source, limit_s, n, name) for n in range(seeds)]
        for name in PATTERNS
    }
    row: Row = {"case": source if isinstance(source, str) else source.name}
    row[f"J, {ALL}"] = f"{statistics.geometric_mean(j[ALL]):.4f}"
    for name in PATTERNS:
        ratios = [100 * (a / b - 1) for a, b in zip(j[name], j[ALL], strict=True)]
        if name != ALL:
            mean = statistics.mean(ratios)
            row[f"{name}, %"] = (
                f"{mean:+.2f} ({min(ratios):+.2f} to {max(ratios):+.2f})"
            )
    return row


def _run(source: Source, limit_s: float, seed: int, name: str) -> float:
    known = case(source)
    with mock.patch.object(tables, "PATTERN", PATTERNS[name]), cpu_clock():
        result = anneal(
            known.instance,
            starts=list(known.baselines.values()),
            stop=MaxRuntime(limit_s),
            seed=seed,
            threads=1,
            engine="compiled",
            statistics=False,
        )
    return result.j_ticks / known.instance.unit_ticks


if __name__ == "__main__":
    main()
