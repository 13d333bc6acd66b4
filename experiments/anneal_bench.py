"""Speed of the annealing engines, as ratios in one run.

    python -m experiments.anneal_bench --out experiments/results/anneal_bench.csv

Jobs that are compared take turns in one process, and every figure is the median over
the turns: on a shared machine only ratios say something. One thread is measured in CPU
time; two threads in wall time, which says little unless two cores are idle. The
temperatures are the hot end, the middle (on a log scale) and the cold end of the
schedule, reached from the best of some hundred sweeps.

Scaling: windows of growing size on the same ranks, layers and experts, first with more
rows, then with larger cells; the middle temperature and one replica.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import torch

from experiments.anneal_cases import Generated, case
from experiments.anneal_methods import Source
from experiments.anneal_plain import PlainChain
from experiments.tables import Row, write_csv
from rpopt.anneal import anneal
from rpopt.anneal.engines import make_engine
from rpopt.anneal.run import Engine
from rpopt.anneal.schedule import temperatures
from rpopt.anneal.tables import Geometry
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.stop import MaxSweeps

WINDOWS = ("w1", "w3", "w6")
SIZES = ((256, 8192), (1024, 8192), (4096, 8192), (1024, 32768), (4096, 131072))
_CORE_MOVES = 400_000
_TORCH_STEPS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--windows", nargs="+", default=WINDOWS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.windows:
        instance, start = _instance(name)
        rows += _core(name, instance, start, options.repeats)
        rows += _others(name, instance, start, options.repeats)
    rows += _scaling(options.repeats)
    write_csv(options.out, rows)


def _row(name: str, figure: str, value: float, bar: str) -> Row:
    print(f"{name}: {figure}: {value:.2f} ({bar})", flush=True)
    return {"case": name, "figure": figure, "value": f"{value:.2f}", "bar": bar}


def _instance(source: Source) -> tuple[LayoutInstance, Layout]:
    known = case(source)
    start = known.baselines[known.best_baseline]
    found = anneal(
        known.instance, starts=[start], stop=MaxSweeps(200), seed=0, population=1
    )
    return known.instance, found.best


def _engine(
    name: str, instance: LayoutInstance, layout: Layout, size: int, threads: int = 1
) -> Engine:
    geometry = Geometry(instance)
    cells = geometry.cells(layout)[None]
    return make_engine(name, geometry, cells, range(size), 0, "cpu", threads)


def _levels(instance: LayoutInstance, layout: Layout) -> dict[str, int]:
    geometry = Geometry(instance)
    span = temperatures(geometry.tables, geometry.cells(layout), 0)
    middle = round(math.sqrt(span.hot * span.cold))
    return {"hot": span.hot, "middle": middle, "cold": span.cold}


def _core(
    name: str, instance: LayoutInstance, layout: Layout, repeats: int
) -> Iterator[Row]:
    """Compare the compiled engine with the plain loop, one thread each."""
    for level, ticks in _levels(instance, layout).items():
        plain = PlainChain(instance, layout)
        engine = _engine("compiled", instance, layout, 8)
        temperature, count = ticks / instance.unit_ticks, _CORE_MOVES // 8
        plain.run(temperature, 10, 0)
        engine.run(ticks, 0, count // 10)
        plain_s, compiled_s = _in_turns(
            repeats,
            process_time,
            partial(plain.run, temperature, _CORE_MOVES),
            _advance(engine, ticks, count),
        )
        yield _row(name, f"plain loop, {level}", plain_s / compiled_s, ">= 0.7")


def _others(
    name: str, instance: LayoutInstance, layout: Layout, repeats: int
) -> Iterator[Row]:
    """Compare with torch, and two threads with one, in wall time."""
    ticks = _levels(instance, layout)["middle"]
    for size, bar in ((16, ">= 50"), (256, ">= 10")):
        ours = _engine("compiled", instance, layout, size)
        theirs = _engine("torch", instance, layout, size)
        count = _CORE_MOVES // size
        ours_s, theirs_s = _in_turns(
            repeats,
            process_time,
            _advance(ours, ticks, count),
            _advance(theirs, ticks, _TORCH_STEPS),
        )
        ratio = (theirs_s / _TORCH_STEPS) / (ours_s / count)
        yield _row(name, f"torch engine, population {size}", ratio, bar)
    count = _CORE_MOVES // 4
    pair = [_engine("compiled", instance, layout, 16, threads) for threads in (1, 2)]
    one_s, two_s = _in_turns(
        repeats, perf_counter, *(_advance(engine, ticks, count) for engine in pair)
    )
    yield _row(name, "one thread, by two", one_s / two_s, ">= 1.7")


def _scaling(repeats: int) -> Iterator[Row]:
    """Compare the cost per attempted move with that of the smallest window."""
    jobs: list[Callable[[int], object]] = []
    names = []
    for samples, token_cap in SIZES:
        source = Generated(
            name=f"{samples} samples, cap {token_cap}",
            samples=samples,
            dp=16,
            ep=8,
            token_cap=token_cap,
            tail="short",
        )
        instance, layout = _instance(source)
        ticks = _levels(instance, layout)["middle"]
        engine = _engine("compiled", instance, layout, 1)
        names.append(f"{source.name}, {instance.num_rows} rows")
        jobs.append(_advance(engine, ticks, _CORE_MOVES))
    seconds = _in_turns(repeats, process_time, *jobs)
    for name, value in zip(names, seconds, strict=True):
        yield _row(name, "cost per move, to the smallest", value / seconds[0], "flat")


def _advance(engine: Engine, ticks: int, count: int) -> Callable[[int], object]:
    """Return a job that attempts the next `count` moves."""
    return lambda n: engine.run(ticks, count * n, count)


def _in_turns(
    repeats: int, clock: Callable[[], float], *jobs: Callable[[int], object]
) -> list[float]:
    """Return the median seconds of each job; the jobs take turns."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for n in range(repeats):
        for job, times in zip(jobs, seconds, strict=True):
            began = clock()
            job(n)
            times.append(clock() - began)
    return [statistics.median(times) for times in seconds]


if __name__ == "__main__":
    main()
