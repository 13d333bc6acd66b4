"""What the annealing study compares: each method turns a case into a layout.

On a machine that is shared with other jobs, seconds on the wall say little. With the
clock "cpu", time limits count the seconds of CPU time of the process; the annealing
runs in one thread, so these are what an idle core would take.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter, process_time
from typing import Any
from unittest import mock

import numpy as np

from experiments.anneal_cases import Case, Generated, case
from experiments.runner import Outcome, Run
from rpopt.anneal import AnnealResult, anneal
from rpopt.checks import require_feasible
from rpopt.exact.layout_leaders import leader_bound
from rpopt.layout.bounds import volume
from rpopt.layout.cells import repair
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from rpopt.stop import MaxRuntime, MaxSweeps

NUM_RESTARTS = 4
_EARLIER_SWEEPS = 500  # of the plan that a warm start comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A layout (None for a bound alone), a bound in ticks, and what else to report."""

    layout: Layout | None
    bound_ticks: int
    termination: str
    sweeps: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


Source = Generated | str
Method = Callable[[Source, Run, float], Found]


@contextmanager
def cpu_clock() -> Iterator[None]:
    """Let time limits count the CPU seconds of this process."""
    with mock.patch.object(time, "monotonic", process_time):
        yield


def solve(source: Source, run: Run) -> Outcome:
    """Run one method on one case; its layout passes the checker and the evaluator."""
    known, limit_s = case(source), float(run.params["limit_s"])
    began_s, began_cpu_s = perf_counter(), process_time()
    found = METHODS[run.method](source, run, limit_s)
    runtime_s, cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
    ticks = None
    if found.layout is not None:
        require_feasible(check(known.instance, found.layout), run.method)
        ticks = evaluate(known.instance, found.layout).j_ticks
    return Outcome(
        instance_digest=known.instance.digest,
        objective=None if ticks is None else ticks / known.instance.unit_ticks,
        upper=ticks,
        lower=found.bound_ticks,
        feasible=ticks is not None,
        termination=found.termination,
        runtime_s=runtime_s,
        num_sweeps=found.sweeps,
        metrics={
            "items": known.instance.num_items,
            "ranks": known.instance.num_ranks,
            "rows": known.instance.num_rows,
            "fill": known.fill,
            "bound": found.bound_ticks / known.instance.unit_ticks,
            "cpu_share": cpu_s / runtime_s,
            **found.metrics,
        },
    )


def _baselines(source: Source, run: Run, limit_s: float) -> Found:
    known = case(source)
    j = {n: evaluate(known.instance, x).j for n, x in known.baselines.items()}
    return Found(
        layout=known.baselines[known.best_baseline],
        bound_ticks=known.bound_ticks,
        termination="done",
        metrics={"best": known.best_baseline, "j": j},
    )


def _annealing(source: Source, run: Run, limit_s: float) -> Found:
    return _report(_anneal(case(source), run, limit_s))


def _of_size(population: int) -> Method:
    def method(source: Source, run: Run, limit_s: float) -> Found:
        return _report(_anneal(case(source), run, limit_s, population=population))

    return method


def _restarts(source: Source, run: Run, limit_s: float) -> Found:
    """Return the best of several chains that share the time."""
    chains = [
        _anneal(
            case(source),
            run,
            limit_s / NUM_RESTARTS,
            population=1,
            seed=NUM_RESTARTS * run.seed + k,
        )
        for k in range(NUM_RESTARTS)
    ]
    return _report(min(chains, key=lambda result: result.j_ticks))


def _warm(variant: str) -> Method:
    def method(source: Source, run: Run, limit_s: float) -> Found:
        known, start = case(source), _earlier(source, variant)
        result = _anneal(known, run, limit_s, start=start)
        found = _report(result)
        start_j = evaluate(known.instance, start).j
        return Found(
            layout=found.layout,
            bound_ticks=found.bound_ticks,
            termination=found.termination,
            sweeps=found.sweeps,
            metrics={**found.metrics, "start": start_j},
        )

    return method


@cache
def _earlier(source: Source, variant: str) -> Layout:
    """Return the layout of the plan made before, made feasible for the case."""
    known = case(source)
    before = known.variants[variant]
    starts = [x for x in known.baselines.values() if not check(before, x)]
    if not starts:
        starts = [_adapted(before, known.baselines[known.best_baseline])]
    stop = MaxSweeps(_EARLIER_SWEEPS)
    found = anneal(before, starts=starts, stop=stop, seed=0, threads=1)
    return _adapted(known.instance, found.best)


def _adapted(instance: LayoutInstance, layout: Layout) -> Layout:
    """Return the layout, or one with the cells that break the token cap repaired."""
    if not check(instance, layout):
        return layout
    cell_I = repair(instance, layout.row_I * instance.num_ranks + layout.rank_I)
    assert cell_I is not None
    row_I, rank_I = np.divmod(cell_I, instance.num_ranks)
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=layout.num_rows)


def _cp_sat(source: Source, run: Run, limit_s: float) -> Found:
    from experiments.anneal_peers import cp_sat  # needs ortools, an extra

    known = case(source)
    hint = known.baselines[known.best_baseline]
    answer = cp_sat(
        known.instance, hint, limit_s=limit_s, seed=run.seed, threads=run.threads
    )
    metrics: dict[str, Any] = {"build_s": answer.build_s, "cp_bound": answer.bound}
    if answer.layout is not None:
        j = evaluate(known.instance, answer.layout).j
        metrics["rounding"] = j - answer.model_j
    return Found(
        layout=answer.layout,
        bound_ticks=known.bound_ticks,
        termination=answer.status,
        metrics=metrics,
    )


def _leader_bound(source: Source, run: Run, limit_s: float) -> Found:
    instance = case(source).instance
    known = volume(instance)
    bound = leader_bound(instance, floor=known.value, time_limit_s=limit_s) or known
    return Found(layout=None, bound_ticks=bound.value, termination=bound.name)


METHODS: Mapping[str, Method] = {
    "baselines": _baselines,
    "annealing": _annealing,
    "population 1": _of_size(1),
    "population 4": _of_size(4),
    "restarts": _restarts,
    "warm, placement": _warm("placement"),
    "warm, samples": _warm("samples"),
    "CP-SAT": _cp_sat,
    "leader bound": _leader_bound,
}


def _anneal(
    known: Case,
    run: Run,
    limit_s: float,
    *,
    population: int | None = None,
    seed: int | None = None,
    start: Layout | None = None,
) -> AnnealResult:
    starts = list(known.baselines.values())
    with cpu_clock() if run.params["clock"] == "cpu" else nullcontext():
        return anneal(
            known.instance,
            starts=starts if start is None else [*starts, start],
            stop=MaxRuntime(limit_s),
            seed=run.seed if seed is None else seed,
            bound_ticks=known.bound_ticks,
            population=population,
            threads=run.threads,
            statistics=False,
        )


def _report(result: AnnealResult) -> Found:
    return Found(
        layout=result.best,
        bound_ticks=result.bound_ticks,
        termination=result.termination,
        sweeps=result.sweeps,
        metrics={
            "population": result.population,
            "moves": result.attempted_moves,
            "annealing_s": result.seconds_s,
        },
    )
