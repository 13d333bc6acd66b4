"""Speed of the annealing engines on the reference windows, as ratios.

    python -m experiments.anneal_bench --repeats 5

Engines take turns in one process, and every figure is the median over the turns: on a
shared machine only ratios say something. One thread is measured in CPU time; two
threads in wall time, which says little unless two cores are idle, and in the CPU time
that they take more than one. The temperatures are the hot end, the middle (on a log
scale) and the cold end of the schedule, reached from the best of some hundred sweeps.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from time import perf_counter, process_time

import torch

from experiments.anneal_cases import case
from experiments.anneal_plain import PlainChain
from rpopt.anneal import anneal
from rpopt.anneal.engines import make_engine
from rpopt.anneal.run import Engine
from rpopt.anneal.schedule import temperatures
from rpopt.anneal.tables import Geometry
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.stop import MaxSweeps

WINDOWS = ("w1", "w2", "w3", "w4", "w5", "w6")
_CORE_MOVES = 400_000
_TORCH_STEPS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--windows", nargs="+", default=WINDOWS)
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("moves/s of one thread in millions, and ratios to the plain loop or as named")
    for name in options.windows:
        instance, start = _instance(name)
        _core(name, instance, start, options.repeats)
        if not options.no_torch:
            _others(name, instance, start, options.repeats)


def _instance(name: str) -> tuple[LayoutInstance, Layout]:
    known = case(name)
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


def _core(name: str, instance: LayoutInstance, layout: Layout, repeats: int) -> None:
    """Compare the compiled engine with the plain loop, one thread each."""
    for level, ticks in _levels(instance, layout).items():
        plain = PlainChain(instance, layout)
        engine = _engine("compiled", instance, layout, 8)
        temperature, count = ticks / instance.unit_ticks, _CORE_MOVES // 8
        plain.run(temperature, 10, 0)
        engine.run(ticks, 0, count // 10)
        rates = _in_turns(
            repeats,
            process_time,
            lambda n, c=plain, t=temperature: c.run(t, _CORE_MOVES, n),
            lambda n, e=engine, t=ticks, m=count: e.run(t, m * (n + 1), m),
        )
        plain_rate, rate = (_CORE_MOVES / seconds / 1e6 for seconds in rates)
        print(
            f"{name} {level:6} plain {plain_rate:5.2f}  compiled {rate:5.2f}"
            f"  ratio {rate / plain_rate:4.2f}",
            flush=True,
        )


def _others(name: str, instance: LayoutInstance, layout: Layout, repeats: int) -> None:
    """Compare with torch, and two threads with one, in wall time."""
    ticks, results = _levels(instance, layout)["middle"], []
    for size in (16, 256):
        ours = _engine("compiled", instance, layout, size)
        theirs = _engine("torch", instance, layout, size)
        count = _CORE_MOVES // size
        seconds = _in_turns(
            repeats,
            process_time,
            lambda n, e=ours, m=count: e.run(ticks, m * n, m),
            lambda n, e=theirs: e.run(ticks, _TORCH_STEPS * n, _TORCH_STEPS),
        )
        ratio = (seconds[1] / _TORCH_STEPS) / (seconds[0] / count)
        results.append(f"{ratio:.0f} x torch at population {size}")
    pair = [_engine("compiled", instance, layout, 16, threads=t) for t in (1, 2)]
    count = _CORE_MOVES // 4
    jobs = [lambda n, e=engine: e.run(ticks, count * n, count) for engine in pair]
    wall, cpu = (
        _in_turns(repeats, clock, *jobs) for clock in (perf_counter, process_time)
    )
    results.append(f"{wall[0] / wall[1]:.2f} x on two threads")
    results.append(f"which take {cpu[1] / cpu[0]:.2f} x the CPU time of one")
    print(f"{name} compiled: {', '.join(results)}", flush=True)


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
