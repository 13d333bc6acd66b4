"""Annealing over several processes: same result as one, and no end without one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from rpopt.anneal import AnnealResult, HistoryPoint, anneal
from rpopt.anneal.loop import EngineName
from rpopt.errors import InstanceError, MismatchError
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import check
from rpopt.planner import plan
from rpopt.stop import MaxRuntime, MaxSweeps, StopCriterion
from tests.anneal.instances import random_instance
from tests.cases import medium_case
from tests.distributed.processes import die, run_group, stall

pytestmark = pytest.mark.dist


def run_once(
    engine: EngineName = "compiled",
    population: int | None = 7,
    stop: StopCriterion | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    timeout_s: float = 60,
    seed: int = 3,
    progress: Callable[[HistoryPoint], None] | None = None,
) -> AnnealResult:
    instance, layout = random_instance(
        0, num_layers=3, num_items=60, num_rows=2, num_shards=2, shard_size=2
    )
    result = anneal(
        instance, starts=[layout], stop=stop or MaxSweeps(40), seed=seed,
        population=population, engine=engine, threads=1, group=group,
        timeout_s=timeout_s, progress=progress,
    )  # fmt: skip
    assert check(instance, result.best) == []
    assert result.j_ticks == evaluate(instance, result.best).j_ticks
    return result


def course(result: AnnealResult) -> tuple[object, ...]:
    """All of a result but times."""
    rows = [
        [getattr(row, name) for name in row.__slots__ if name != "seconds_s"]
        for row in result.temperatures
    ]
    history = [(point.sweeps, point.best_ticks) for point in result.history]
    return result.best.digest, result.termination, history, rows


def course_in_group(rank: int, engine: EngineName) -> list[tuple[object, ...]]:
    return [
        course(run_once(engine, population, group=dist.group.WORLD))
        for population in (7, 3)
    ]


@pytest.mark.parametrize(
    ("size", "engine"),
    [(1, "compiled"), (2, "compiled"), (3, "compiled"), (4, "compiled"), (3, "torch")],
)
def test_any_number_of_processes_follows_the_course_of_one(
    size: int, engine: EngineName, tmp_path: Path
) -> None:
    alone = [course(run_once(engine, population)) for population in (7, 3)]
    found = run_group(partial(course_in_group, engine=engine), size, tmp_path)
    assert list(found.values()) == [alone] * size


def timed(rank: int) -> tuple[str, int, float, str]:
    result = run_once(population=None, stop=MaxRuntime(0.5), group=dist.group.WORLD)
    last = result.temperatures[-1]
    return result.best.digest, result.sweeps, result.seconds_s, last.rho_t.hex()


def test_a_time_limit_is_the_first_processs(tmp_path: Path) -> None:
    found = run_group(timed, 2, tmp_path)
    assert found[0] == found[1]
    assert found[0][1] > 0


def plan_alone_or_in_group(
    rank: int, stop: StopCriterion, group: dist.ProcessGroup | None = None
) -> tuple[str, str]:
    case = medium_case()
    found = plan(
        case.window, case.topology, case.rules, case.cost, stop=stop, seed=1,
        group=group, timeout_s=3,
    )  # fmt: skip
    return found.layout.digest, found.placement.digest if found.placement else ""


def plan_in_group(rank: int, stop: StopCriterion) -> tuple[str, str]:
    return plan_alone_or_in_group(rank, stop, dist.group.WORLD)


def test_processes_plan_what_one_plans(tmp_path: Path) -> None:
    stop = MaxSweeps(20)
    alone = plan_alone_or_in_group(0, stop)
    found = run_group(partial(plan_in_group, stop=stop), 2, tmp_path)
    assert set(found.values()) == {alone}


def test_processes_share_out_the_time_alike(tmp_path: Path) -> None:
    found = run_group(partial(plan_in_group, stop=MaxRuntime(1.0)), 2, tmp_path)
    assert found[0] == found[1]


def plan_or_stall(rank: int) -> tuple[str, str]:
    if rank == 1:
        stall(rank)
    return plan_in_group(rank, MaxRuntime(1.0))


def test_a_plan_survives_a_lost_process(tmp_path: Path) -> None:
    found = run_group(plan_or_stall, 2, tmp_path, lost=(1,))
    assert list(found) == [0]


@dataclass
class Lost:
    """A criterion that loses its process when it is asked after some sweeps."""

    way: Callable[[int], None]
    asked: int = 0

    def reset(self) -> None:
        self.asked = 0

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        if sweeps >= 60:
            self.way(1)
        return False


@dataclass
class Never:
    def reset(self) -> None: ...

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        return False


def survive(rank: int, lost: int, way: Callable[[int], None]) -> tuple[str, int, float]:
    """Lose a process in the middle of a run: the first at a vote, others at a best."""
    seen: list[HistoryPoint] = []

    def progress(point: HistoryPoint) -> None:
        seen.append(point)
        if rank == lost and len(seen) == 4:
            way(1)

    began_s = time.monotonic()
    stop = Lost(way) if rank == lost == 0 else Never()
    result = run_once(stop=stop, group=dist.group.WORLD, timeout_s=3, progress=progress)
    assert result.j_ticks <= seen[-1].best_ticks < seen[0].best_ticks
    return result.termination, result.j_ticks, time.monotonic() - began_s


@pytest.mark.parametrize("way", [die, stall])
@pytest.mark.parametrize("lost", [0, 2])
def test_the_others_return_the_best_they_hold_when_a_process_is_lost(
    lost: int, way: Callable[[int], None], tmp_path: Path
) -> None:
    found = run_group(partial(survive, lost=lost, way=way), 3, tmp_path, lost=(lost,))
    assert {termination for termination, _, _ in found.values()} == {"process lost"}


def alone_in_company(rank: int) -> str:
    if rank == 1:
        stall(rank)
    return run_once(group=dist.group.WORLD, timeout_s=2).termination


def test_a_process_that_never_comes_leaves_the_start(tmp_path: Path) -> None:
    assert run_group(alone_in_company, 2, tmp_path, lost=(1,)) == {0: "process lost"}


def disagree(rank: int) -> str:
    with pytest.raises(MismatchError) as error:
        run_once(seed=int(rank == 1), group=dist.group.WORLD)
    return str(error.value)


def test_different_arguments_are_an_error_everywhere(tmp_path: Path) -> None:
    found = run_group(disagree, 3, tmp_path)
    assert all("[1] of 3" in message for message in found.values())


def refuse(rank: int) -> None:
    with pytest.raises(InstanceError, match="timeout_s"):
        run_once(group=dist.group.WORLD, timeout_s=0)


def test_a_timeout_is_positive(tmp_path: Path) -> None:
    run_group(refuse, 1, tmp_path)
