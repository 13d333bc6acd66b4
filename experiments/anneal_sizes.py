"""Which population pays: sizes against a single chain, at equal time.

    python -m experiments.anneal_sizes --out experiments/results/anneal_sizes.csv

Each pair of a reference window and a seed is annealed with every size; limits count
the CPU seconds of one thread.
"""

import argparse
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

from tqdm import tqdm

from experiments.anneal_cases import case
from experiments.anneal_methods import cpu_clock
from experiments.tables import Row, write_csv
from rpopt.anneal import AnnealResult, anneal
from rpopt.stop import MaxRuntime

WINDOWS = ("w1", "w2", "w3", "w4", "w5", "w6")
SIZES = (1, 2, 4, 16)
Pair = tuple[str, int]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", nargs="+", default=WINDOWS)
    parser.add_argument("--limits", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 4, 1])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(argv)
    rows: list[Row] = []
    with ProcessPoolExecutor(options.workers) as pool:
        for limit_s, seeds in zip(options.limits, options.seeds, strict=True):
            pairs = list(product(options.windows, range(seeds)))
            found = pool.map(partial(sizes, limit_s), pairs)
            runs = list(tqdm(found, total=len(pairs), desc=f"{limit_s:g} s"))
            rows += [against_one(limit_s, size, runs) for size in SIZES[1:]]
    write_csv(options.out, rows)


def sizes(limit_s: float, pair: Pair) -> dict[int, AnnealResult]:
    """Anneal one window with one seed and every size."""
    window, seed = pair
    known = case(window)
    with cpu_clock():
        return {
            size: anneal(
                known.instance,
                starts=list(known.baselines.values()),
                stop=MaxRuntime(limit_s),
                seed=seed,
                population=size,
                threads=1,
                statistics=False,
            )
            for size in SIZES
        }


def against_one(
    limit_s: float, size: int, runs: Sequence[dict[int, AnnealResult]]
) -> Row:
    """Return the excess of J over that of a single chain."""
    excess = [100 * (r[size].j_ticks / r[1].j_ticks - 1) for r in runs]
    return {
        "limit": f"{limit_s:g} s",
        "population": size,
        "pairs": len(runs),
        "J over that of 1, mean %": f"{statistics.fmean(excess):+.3f}",
        "range, %": f"{min(excess):+.2f} to {max(excess):+.2f}",
        "better": sum(e < 0 for e in excess),
        "worse": sum(e > 0 for e in excess),
    }


if __name__ == "__main__":
    main()
