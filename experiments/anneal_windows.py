"""What the previous window's layout buys: cold and warm annealing, window by window.

    python -m experiments.anneal_windows --out experiments/results/anneal_windows.csv

Consecutive windows are drawn like the reference windows, each with the placement for
its own aggregate demand. A cold run starts from the baselines, a warm one from them and
from the last window's layout, mapped by `carry_over`; a hot run is a cold one that
never begins at the temperature of its start. The window's best known J is the smallest
that any run found, a longer one among them. The annealing runs in one thread.
"""

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
from tqdm import tqdm

from experiments.anneal_cases import COST
from experiments.tables import Row, write_csv
from rpopt.anneal import AnnealResult, anneal, loop
from rpopt.io.reference import build_reference_like
from rpopt.layout.baselines import baselines
from rpopt.layout.carry import carry_over
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.rows import certify_rows
from rpopt.placement.heuristics import place
from rpopt.plans import Layout
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import MaxRuntime
from rpopt.topology import Topology

GAPS_PERCENT = (1.0, 0.5)
KINDS = ("hot", "cold", "warm")
_KEPT = 0  # the seed of the run whose layout the next window starts from


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Consecutive windows of one kind."""

    name: str
    samples: int
    dp: int
    ep: int
    token_cap: int


STREAMS = (
    Stream(name="like w1", samples=512, dp=16, ep=8, token_cap=16384),
    Stream(name="like w3", samples=1024, dp=64, ep=8, token_cap=16384),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One window of a stream."""

    instance: LayoutInstance
    packed_I: np.ndarray

    @cached_property
    def baselines(self) -> Mapping[str, Layout]:
        return baselines(self.instance, self.packed_I)


def step(stream: Stream, seed: int) -> Step:
    """Draw, place and pack a window."""
    window = build_reference_like(
        seed=seed, num_samples=stream.samples, token_cap=stream.token_cap
    )
    topology = Topology(dp=stream.dp, ep=stream.ep)
    rules = PackingRules(token_cap=stream.token_cap)
    problems = WindowProblems(window, topology, rules, COST)
    assert problems.placement is not None
    rows = certify_rows(problems.packing)
    instance = problems.layout(place(problems.placement, seed=0), rows.upper)
    packed_I = np.array(rows.witness["cell_I"], dtype=np.int64)
    return Step(instance=instance, packed_I=packed_I)


def run(
    now: Step, carried: Layout | None, kind: str, limit_s: float, seed: int
) -> AnnealResult:
    starts = [*now.baselines.values()]
    if kind == "warm" and carried is not None:
        starts.append(carried)
    short = 0 if kind == "hot" else loop.SHORT_SWEEPS
    with mock.patch.object(loop, "SHORT_SWEEPS", short):
        return anneal(
            now.instance, starts=starts, stop=MaxRuntime(limit_s), seed=seed, threads=1
        )


def time_to(result: AnnealResult, ticks: float) -> float:
    """Return the seconds until J is at most `ticks`; infinite when it never is."""
    reached = (p.seconds_s for p in result.history if p.best_ticks <= ticks)
    return next(reached, math.inf)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=3, help="after the first one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limits", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument(
        "--long", type=float, default=10.0, help="s, for the best known"
    )
    options = parser.parse_args(argv)
    rows: list[Row] = []
    for stream in STREAMS:
        rows += study(stream, options)
    write_csv(options.out, rows)


def study(stream: Stream, options: argparse.Namespace) -> list[Row]:
    """Anneal each window cold and warm; return a row per limit."""
    runs: dict[tuple[float, str], list[tuple[AnnealResult, float]]] = {}
    carried_gaps = []
    before = step(stream, 0)
    layout = run(before, None, "cold", max(options.limits), _KEPT).best
    for number in tqdm(range(1, options.windows + 1), desc=stream.name):
        now = step(stream, number)
        carried = carry_over(layout, before.instance, now.instance)
        assert carried is not None
        found = {
            (limit_s, kind, seed): run(now, carried, kind, limit_s, seed)
            for limit_s in options.limits
            for seed in range(options.seeds)
            for kind in KINDS
        }
        long = run(now, carried, "warm", options.long, options.seeds)
        best = min(r.j_ticks for r in [long, *found.values()])
        for (limit_s, kind, _), result in found.items():
            runs.setdefault((limit_s, kind), []).append((result, best))
        carried_gaps.append(evaluate(now.instance, carried).j_ticks / best - 1)
        before, layout = now, found[max(options.limits), "warm", _KEPT].best
    return [
        {
            "windows": stream.name,
            "carried layout, %": f"{100 * statistics.median(carried_gaps):.2f}",
            "limit": f"{limit_s:g} s",
            **gaps([runs[limit_s, kind] for kind in KINDS]),
        }
        for limit_s in options.limits
    ]


def gaps(runs: Sequence[Sequence[tuple[AnnealResult, float]]]) -> Row:
    """Return each kind's median gap, and the median seconds to gaps."""
    row: Row = {}
    for kind, found in zip(KINDS, runs, strict=True):
        excess = [100 * (result.j_ticks / best - 1) for result, best in found]
        row[f"{kind}, %"] = f"{statistics.median(excess):.2f}"
    for level, (kind, found) in product(GAPS_PERCENT, zip(KINDS, runs, strict=True)):
        times = [time_to(result, best * (1 + level / 100)) for result, best in found]
        median = statistics.median(times)
        shown = "never" if math.isinf(median) else f"{median:.2f}"
        row[f"{kind}, s to {level:g} %"] = shown
    return row


if __name__ == "__main__":
    main()
