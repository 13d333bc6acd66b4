"""The plan of a run."""

import pytest

from rpopt.anneal.engines import choose_population
from rpopt.anneal.schedule import Limits, Temperatures, temperatures
from rpopt.anneal.tables import Geometry
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion
from tests.anneal.instances import random_instance

SPAN = Temperatures(hot=10**9, cold=10**6)


class Never:
    def reset(self) -> None:
        pass

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("stop", "seconds_s", "sweeps"),
    [
        (MaxRuntime(2.5), 2.5, None),
        (MaxSweeps(7), None, 7),
        (FirstOf((MaxSweeps(7), FirstOf((MaxRuntime(3), MaxSweeps(5))))), 3, 5),
        (Never(), None, None),
    ],
)
def test_limits_are_read_from_the_criteria(
    stop: StopCriterion, seconds_s: float | None, sweeps: int | None
) -> None:
    assert Limits.of(stop) == Limits(seconds_s=seconds_s, sweeps=sweeps)


@pytest.mark.parametrize("moves", [0, 1, 50, 10**6])
def test_stages_spend_all_moves_by_the_coldest_temperature(moves: int) -> None:
    temperature, left = SPAN.hot, moves
    left -= SPAN.share(temperature, temperature, left)
    stages = 1
    while temperature > SPAN.cold:
        lowest = SPAN.lowest_next(temperature)
        highest = SPAN.highest_next(temperature, left // 10)
        assert SPAN.cold <= lowest < temperature
        assert SPAN.cold <= highest < temperature
        after = max(lowest, highest)
        left -= SPAN.share(temperature, after, left)
        temperature, stages = after, stages + 1
    assert left == 0
    assert stages <= 1 + 32 * 10


def test_moves_are_spread_evenly_over_the_logarithm() -> None:
    middle = 10**7
    spent = SPAN.share(SPAN.hot, middle, 3000)
    assert spent == pytest.approx(2000, rel=1e-3)
    assert SPAN.share(middle, SPAN.cold, 1000) == 1000


@pytest.mark.parametrize("seed", range(20))
def test_the_range_is_positive_and_repeatable(seed: int) -> None:
    instance, layout = random_instance(seed)
    geometry = Geometry(instance)
    cell_I = geometry.cells(layout)
    found = temperatures(geometry.tables, cell_I, 0)
    assert 1 <= found.cold <= found.hot
    assert found == temperatures(geometry.tables, cell_I, 0)


def test_the_population_grows_with_time_but_not_with_sweeps() -> None:
    instance, _ = random_instance(0, num_items=60)
    tables = Geometry(instance).tables

    def size(stop: StopCriterion, name: str = "compiled", threads: int = 2) -> int:
        return choose_population(tables, Limits.of(stop), name, threads)

    assert size(MaxSweeps(10)) == size(MaxSweeps(10**6)) == size(MaxSweeps(1), "torch")
    assert size(MaxRuntime(0.001)) == 4
    assert 4 < size(MaxRuntime(5)) < size(MaxRuntime(100)) == 64
    assert size(MaxRuntime(0.001), threads=12) == 12
