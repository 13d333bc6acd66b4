"""Population annealing over layouts: the main loop.

The pseudocode with its sources is in docs/algorithms/annealing.md.

Axis letters: A starts, B replicas, I items.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from rpopt.anneal.engines import (
    choose_engine,
    choose_population,
    load_engine,
    make_engine,
)
from rpopt.anneal.log import Log
from rpopt.anneal.resample import resample
from rpopt.anneal.result import AnnealResult
from rpopt.anneal.run import Engine, HistoryPoint, LocalEngine, Run
from rpopt.anneal.schedule import Limits, Temperatures, temperatures
from rpopt.anneal.tables import Geometry, needs_wide
from rpopt.checks import require_feasible
from rpopt.errors import InstanceError
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from rpopt.records import positive_int
from rpopt.stop import StopCriterion

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

EngineName = Literal["auto", "compiled", "torch"]
_CULLING = (1, 10)  # target share of replicas that die in a resampling
_QUENCH_SHARE = 16  # one part in so many is kept for temperature 0
SHORT_SWEEPS = 256  # a round of fewer has no time to make up for what heat undoes


def anneal(
    instance: LayoutInstance,
    *,
    starts: Sequence[Layout],
    stop: StopCriterion,
    seed: int,
    bound_ticks: int = 0,
    population: int | None = None,
    engine: EngineName = "auto",
    device: str = "cpu",
    threads: int | None = None,
    statistics: bool = True,
    progress: Callable[[HistoryPoint], None] | None = None,
    group: "ProcessGroup | None" = None,
    timeout_s: float = 60.0,
) -> AnnealResult:
    """Improve layouts by population annealing.

    Parameters
    ----------
    instance
        The problem.
    starts
        At least one feasible layout. The result is never worse than the best of them.
    stop
        When to end. The schedule is planned for the time or sweeps it names, so that
        the run ends cold. A limit of sweeps makes the result a function of the
        arguments alone, on any engine and any number of threads.
    seed
        Any whole number.
    bound_ticks
        A lower bound on J; the run ends when it is met.
    population
        Replicas; None lets the engine choose for the budget.
    engine
        "compiled": loops for CPUs; "torch": whole-population operations on any device;
        "auto": compiled on the CPU, torch on other devices.
    device
        Where the torch engine keeps its population.
    threads
        Threads of the compiled engine; None for one per available core.
    statistics
        Whether to keep statistics of every temperature.
    progress
        Called with each new best.
    group
        A torch.distributed group, of any backend, all of whose processes call this
        with the same arguments and share the replicas; all get the same result, and
        the one that a single process would get within the same sweeps.
    timeout_s
        How long the processes of a group wait for each other. When one is lost, each
        of the others logs a warning and returns the best layout that it holds; the
        termination says so.

    Raises
    ------
    InstanceError
        Without starts, or for an engine that cannot be had.
    InfeasibleError
        For a start that breaks a constraint; the message names it.
    MismatchError
        When the processes of a group were given different arguments.
    """
    if not starts:
        raise InstanceError("annealing needs at least one start; give a baseline")
    for number, start in enumerate(starts):
        require_feasible(check(instance, start), f"start {number}")
    name = choose_engine(engine, device)
    cores = len(os.sched_getaffinity(0))
    threads = cores if threads is None else positive_int(threads, name="threads")
    load_engine(name, device, wide=needs_wide(instance))
    stop.reset()  # only now: loading may have compiled the engine
    began_s = time.monotonic()
    geometry = Geometry(instance)
    limits = Limits.of(stop)
    if population is None:
        workers = threads * (1 if group is None else group.size())
        population = choose_population(geometry.tables, limits, name, workers)
    population = positive_int(population, name="population")
    start_ticks = [evaluate(instance, start).j_ticks for start in starts]
    order_A = sorted(range(len(starts)), key=start_ticks.__getitem__)
    start_AI = np.array([geometry.cells(starts[a]) for a in order_A[:population]])
    run = Run(
        stop=stop,
        moves_per_sweep=instance.num_items,
        population=population,
        bound_ticks=bound_ticks,
        best_ticks=start_ticks[order_A[0]],
        best_cell_I=start_AI[0],
        began_s=began_s,
        progress=progress,
    )
    if instance.num_cells == 1:
        run.termination = "nothing to move"
    span = temperatures(geometry.tables, start_AI[0], seed)
    if span.start < span.hot:
        start_AI = start_AI[:1]  # worse ones would die before they are hot
    log = Log(run, statistics=statistics)

    def make(slots: range) -> LocalEngine:
        return make_engine(name, geometry, start_AI, slots, seed, device, threads)

    def search(replicas: Engine) -> None:
        _search(replicas, run, log, span, seed)

    if group is None:
        replicas = make(range(population))
        try:
            search(replicas)
        finally:
            replicas.close()
    else:
        from rpopt.anneal.distributed import search_together

        digests = [record.digest for record in (instance, *starts)]
        same = (digests, limits, bound_ticks, seed, population, name, statistics)
        search_together(search, make, run, group=group, timeout_s=timeout_s, same=same)
    best = geometry.layout(run.best_cell_I)
    assert not check(instance, best)
    assert evaluate(instance, best).j_ticks == run.best_ticks
    return AnnealResult(
        best=best,
        j_ticks=run.best_ticks,
        unit_ticks=instance.unit_ticks,
        bound_ticks=bound_ticks,
        history=tuple(run.history),
        temperatures=tuple(log.rows),
        population=population,
        engine=name,
        seed=seed,
        start_used=order_A[0],
        sweeps=run.sweeps,
        attempted_moves=run.moves * population,
        seconds_s=run.seconds_s,
        termination=run.termination,
    )


def _search(
    replicas: Engine, run: Run, log: Log, span: Temperatures, seed: int
) -> None:
    """Anneal in rounds, and descend with what no round fits into."""
    run.check()
    run.warm_up(replicas, span.start)
    while not run.over and run.plan_round():
        short = run.left() < SHORT_SWEEPS * run.moves_per_sweep
        _cool(replicas, run, log, span.from_start if short else span, seed)
    while not run.over:
        run.spend(replicas, 0, run.moves_per_sweep)


def _cool(replicas: Engine, run: Run, log: Log, span: Temperatures, seed: int) -> None:
    """Anneal from hot to cold, then descend."""
    temperature = span.hot
    reserve = run.left() // _QUENCH_SHARE
    moves = span.share(temperature, temperature, run.left() - reserve)
    while True:
        run.spend(replicas, temperature, max(1, moves))
        log.swept(replicas, temperature)
        if run.over or temperature == span.cold:
            break
        left = max(0, run.left() - reserve)
        step = resample(
            replicas.energies(),
            temperature,
            lowest=span.lowest_next(temperature),
            highest=span.highest_next(temperature, left // run.moves_per_sweep),
            culling=_CULLING,
            seed=seed,
            step=run.moves,
        )
        replicas.copy(step.parent_B)
        log.resampled(step)
        moves = span.share(temperature, step.temperature, left)
        temperature = step.temperature
    run.spend(replicas, 0, run.left())
    log.swept(replicas, 0)
