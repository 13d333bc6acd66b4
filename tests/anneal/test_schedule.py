"""The plan of a run."""

import math

import numpy as np
import pytest

from rpopt.anneal import anneal
from rpopt.anneal.engines import choose_population
from rpopt.anneal.schedule import Limits, Temperatures, _balance, temperatures
from rpopt.anneal.tables import Geometry
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion
from tests.anneal.instances import random_instance

SPAN = Temperatures(hot=10**9, cold=10**6, start=10**9)


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
    assert 1 <= found.cold <= found.start <= found.hot
    assert found == temperatures(geometry.tables, cell_I, 0)


def test_a_start_belongs_where_accepted_swaps_do_not_raise_the_energy() -> None:
    span = Temperatures(hot=10**6, cold=10**3, start=10**6)
    assert _balance(np.array([-1, -5]), span) == span.hot
    assert _balance(np.array([1, 5]), span) == span.cold
    assert _balance(np.zeros(0, dtype=np.int64), span) == span.hot
    # 20000 exp(-20000 / T) = 10000 where T = 20000 / log 2
    found = _balance(np.array([20_000, -10_000]), span)
    assert found == pytest.approx(20_000 / math.log(2), rel=1e-2)


def test_an_annealed_layout_is_a_colder_start() -> None:
    instance, layout = random_instance(2, num_items=80, num_rows=2, num_layers=3)
    geometry = Geometry(instance)
    found = anneal(instance, starts=[layout], stop=MaxSweeps(400), seed=0).best
    spans = [
        temperatures(geometry.tables, geometry.cells(x), 0) for x in (layout, found)
    ]
    assert spans[0].start == spans[0].hot
    assert spans[1].start < spans[1].hot // 8


def test_only_a_short_run_begins_at_the_temperature_of_its_start() -> None:
    instance, layout = random_instance(2, num_items=80, num_rows=2, num_layers=3)
    good = anneal(instance, starts=[layout], stop=MaxSweeps(400), seed=0)
    geometry = Geometry(instance)
    span = temperatures(geometry.tables, geometry.cells(good.best), 1)
    assert span.start < span.hot
    for sweeps, first in ((20, span.start), (400, span.hot)):
        again = anneal(
            instance, starts=[layout, good.best], stop=MaxSweeps(sweeps), seed=1
        )
        assert again.temperatures[0].temperature_ticks == first
        assert again.start_used == 1
        assert again.j_ticks <= good.j_ticks


def test_the_population_grows_with_time_but_not_with_sweeps() -> None:
    instance, _ = random_instance(0, num_items=60)
    tables = Geometry(instance).tables

    def size(stop: StopCriterion, name: str = "compiled", threads: int = 2) -> int:
        return choose_population(tables, Limits.of(stop), name, threads)

    assert size(MaxSweeps(10)) == size(MaxSweeps(10**6)) == size(MaxSweeps(1), "torch")
    assert size(MaxRuntime(0.001)) == size(MaxRuntime(0.001), threads=1) == 2
    assert 2 < size(MaxRuntime(5)) < size(MaxRuntime(100)) == 64
    assert size(MaxRuntime(0.001), threads=12) == 12
