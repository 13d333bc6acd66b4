"""Whole runs: quality, guarantees, determinism, limits and errors."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rpopt.anneal import AnnealResult, HistoryPoint, anneal
from rpopt.anneal.loop import EngineName
from rpopt.anneal.moves import Kind
from rpopt.errors import InfeasibleError, InstanceError
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.plans import Layout
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps
from rpopt.topology import Coupling
from tests.anneal.instances import COUPLINGS, random_instance
from tests.oracle.layout import optimal_ticks


def middle_instance(seed: int = 0) -> tuple[LayoutInstance, Layout]:
    return random_instance(
        seed, num_items=60, num_rows=2, num_shards=2, shard_size=2, num_layers=3
    )


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("seed", range(6))
def test_reaches_the_optimum_of_tiny_instances_and_never_beats_it(
    seed: int, coupling: Coupling
) -> None:
    instance, layout = random_instance(
        seed, coupling=coupling, num_items=6, num_rows=2, num_shards=1 + seed % 2,
        shard_size=1 + (seed + 1) % 2,
    )  # fmt: skip
    result = anneal(
        instance, starts=[layout], stop=MaxSweeps(400), seed=seed, population=16
    )
    assert result.j_ticks == optimal_ticks(instance)


@pytest.mark.parametrize("seed", range(10))
def test_is_feasible_exact_and_never_worse_than_the_best_start(seed: int) -> None:
    instance, layout = random_instance(seed)
    better = anneal(instance, starts=[layout], stop=MaxSweeps(50), seed=seed).best
    result = anneal(
        instance,
        starts=[layout, better],
        stop=MaxSweeps(3),
        seed=seed + 1,
        population=2,
    )
    assert check(instance, result.best) == []
    assert result.j_ticks == evaluate(instance, result.best).j_ticks
    assert result.j_ticks <= evaluate(instance, better).j_ticks
    assert result.start_used in (0, 1)


def test_a_sweep_limit_gives_the_same_on_any_engine_and_threads() -> None:
    instance, layout = middle_instance()
    results = [
        anneal(
            instance, starts=[layout], stop=MaxSweeps(8), seed=3, population=6, **how
        )
        for how in (
            {"engine": "compiled", "threads": 1},
            {"engine": "compiled", "threads": 2},
            {"engine": "torch"},
        )
    ]
    assert len({r.best.digest for r in results}) == 1
    assert len({tuple(p.best_ticks for p in r.history) for r in results}) == 1
    steps = [[t.energy_median_ticks for t in r.temperatures] for r in results]
    assert steps[0] == steps[1] == steps[2]
    assert {r.sweeps for r in results} == {8}
    assert [r.engine for r in results] == ["compiled", "compiled", "torch"]


def test_seeds_differ() -> None:
    instance, layout = middle_instance()
    results = [
        anneal(instance, starts=[layout], stop=MaxSweeps(5), seed=seed)
        for seed in range(3)
    ]
    assert len({r.best.digest for r in results}) > 1


def test_the_sweep_limit_is_met_exactly_and_the_run_ends_cold() -> None:
    instance, layout = middle_instance()
    result = anneal(instance, starts=[layout], stop=MaxSweeps(37), seed=0, population=4)
    assert (result.sweeps, result.termination) == (37, "sweep limit")
    assert result.attempted_moves == 37 * 60 * 4
    temperatures = [t.temperature_ticks for t in result.temperatures]
    assert temperatures == sorted(temperatures, reverse=True)
    assert temperatures[-1] == 0
    attempted = np.sum([t.attempted_M for t in result.temperatures], axis=0)
    assert attempted.sum() == result.attempted_moves


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_a_time_limit_is_kept_and_the_run_ends_cold(engine: EngineName) -> None:
    instance, layout = middle_instance()
    result = anneal(
        instance,
        starts=[layout],
        stop=MaxRuntime(0.5),
        seed=0,
        engine=engine,
        population=8,
    )
    assert result.seconds_s < 0.75
    assert result.termination == "time limit"
    first, last = result.temperatures[0], result.temperatures[-1]
    assert last.temperature_ticks < first.temperature_ticks / 30


@pytest.mark.parametrize("stop", [MaxRuntime(0), MaxSweeps(0)])
def test_no_budget_returns_the_best_start(stop: MaxRuntime | MaxSweeps) -> None:
    instance, layout = middle_instance()
    result = anneal(instance, starts=[layout], stop=stop, seed=0)
    assert result.best == layout
    assert result.sweeps == 0
    assert result.termination in ("time limit", "sweep limit")


def test_the_first_of_several_limits_counts() -> None:
    instance, layout = middle_instance()
    result = anneal(
        instance,
        starts=[layout],
        stop=FirstOf((MaxRuntime(60), MaxSweeps(4))),
        seed=0,
    )
    assert result.termination == "sweep limit"


def test_a_custom_criterion_is_asked_after_every_sweep() -> None:
    class Patience:
        asked: list[int]

        def reset(self) -> None:
            self.asked = []

        def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
            self.asked.append(sweeps)
            return sweeps >= 2500

    instance, layout = random_instance(1, num_items=9, num_rows=1, num_shards=2)
    stop = Patience()
    result = anneal(instance, starts=[layout], stop=stop, seed=0, population=2)
    assert result.termination == "stop criterion"
    assert sorted(set(stop.asked)) == list(range(2501))
    assert sum(t.temperature_ticks == 0 for t in result.temperatures) == 2


def test_stops_when_the_bound_is_met() -> None:
    instance, layout = middle_instance()
    result = anneal(instance, starts=[layout], stop=MaxSweeps(50), seed=0)
    again = anneal(
        instance,
        starts=[layout],
        stop=MaxSweeps(50),
        seed=0,
        bound_ticks=result.j_ticks,
    )
    assert again.termination == "bound met"
    assert again.j_ticks == result.j_ticks
    assert again.sweeps <= result.sweeps
    done = anneal(
        instance, starts=[again.best], stop=MaxSweeps(5), seed=0, bound_ticks=10**15
    )
    assert (done.sweeps, done.termination) == (0, "bound met")


def test_one_replica_will_do() -> None:
    instance, layout = middle_instance()
    result = anneal(
        instance, starts=[layout], stop=MaxSweeps(100), seed=0, population=1
    )
    assert result.population == 1
    assert result.j_ticks < evaluate(instance, layout).j_ticks


def test_nothing_to_move() -> None:
    one_cell, layout = random_instance(
        0, num_items=4, num_rows=1, num_shards=1, shard_size=1
    )
    result = anneal(one_cell, starts=[layout], stop=MaxSweeps(10), seed=0)
    assert (result.best, result.termination) == (layout, "nothing to move")
    lonely, layout = random_instance(
        0, num_items=1, num_rows=1, num_shards=1, shard_size=1
    )
    assert anneal(lonely, starts=[layout], stop=MaxSweeps(10), seed=0).best == layout


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_where_no_move_is_feasible_the_start_is_the_answer(engine: EngineName) -> None:
    instance, _ = random_instance(
        0, num_items=4, num_rows=1, num_shards=1, shard_size=2, num_layers=1
    )
    # of cells {5, 4} and {6, 3} with room for 9, every swap makes one too heavy
    full = replace(
        instance,
        weight_I=np.array([5, 4, 6, 3]),
        token_cap=9,
        max_samples_per_cell=None,
    )
    rank_I = np.array([0, 0, 1, 1])
    start = Layout(row_I=np.zeros(4, dtype=np.int64), rank_I=rank_I, num_rows=1)
    result = anneal(
        full, starts=[start], stop=MaxSweeps(50), seed=0, population=2, engine=engine
    )
    assert result.best == start
    assert all(sum(row.accepted_M) == 0 for row in result.temperatures)


def test_equal_items_leave_nothing_to_gain() -> None:
    instance, layout = random_instance(
        4, num_items=12, num_rows=2, num_shards=2, shard_size=1, slack=0
    )
    parts = {name: getattr(instance, name) for name in instance.__slots__}
    for name in ("weight_I", "num_samples_I", "attention_ticks_IC", "load_ILP"):
        parts[name] = np.ones_like(parts[name])
    parts |= {"token_cap": 3, "max_samples_per_cell": None}
    equal = LayoutInstance(**parts)
    cell_I = np.arange(12) % 4
    even = Layout(row_I=cell_I // 2, rank_I=cell_I % 2, num_rows=2)
    result = anneal(equal, starts=[even], stop=MaxSweeps(20), seed=0)
    assert result.j_ticks == evaluate(equal, even).j_ticks


def test_statistics_are_complete_and_can_be_written_or_switched_off(
    tmp_path: Path,
) -> None:
    instance, layout = middle_instance()
    result = anneal(instance, starts=[layout], stop=MaxSweeps(60), seed=0, population=8)
    first = result.temperatures[0]
    assert (first.num_families, first.rho_t) == (8, 1)
    assert first.family_entropy == pytest.approx(np.log(8))
    assert any(t.culled_fraction > 0 for t in result.temperatures)
    for row in result.temperatures:
        assert row.energy_min_ticks <= row.energy_median_ticks <= row.energy_max_ticks
        assert all(a <= b for a, b in zip(row.accepted_M, row.attempted_M, strict=True))
        assert len(row.accepted_M) == len(Kind)
    path = tmp_path / "statistics.csv"
    result.to_csv(path)
    with path.open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(result.temperatures)
    assert table[0]["accepted_M_1"] == str(first.accepted_M[1])
    quiet = anneal(
        instance,
        starts=[layout],
        stop=MaxSweeps(60),
        seed=0,
        population=8,
        statistics=False,
    )
    assert quiet.temperatures == ()
    assert quiet.best == result.best


def test_history_falls_and_progress_sees_it() -> None:
    instance, layout = middle_instance()
    seen: list[HistoryPoint] = []
    result = anneal(
        instance, starts=[layout], stop=MaxSweeps(30), seed=0, progress=seen.append
    )
    assert tuple(seen) == result.history
    best = [p.best_ticks for p in seen]
    assert best == sorted(set(best), reverse=True)
    assert best[0] == evaluate(instance, layout).j_ticks
    assert best[-1] == result.j_ticks


def refused(**changes: object) -> AnnealResult:
    instance, layout = middle_instance()
    settings: dict[str, object] = {
        "starts": [layout],
        "stop": MaxSweeps(1),
        "seed": 0,
    }
    return anneal(instance, **(settings | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"starts": []}, "at least one start"),
        ({"engine": "magic"}, "compiled, torch"),
        ({"engine": "compiled", "device": "cuda"}, "engine = 'torch'"),
        ({"engine": "torch", "device": "nowhere"}, "engine = 'compiled'"),
        ({"population": 0}, "population"),
        ({"threads": 0}, "threads"),
    ],
)
def test_errors_say_what_to_do(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InstanceError, match=words):
        refused(**changes)


def test_an_infeasible_start_is_refused_naming_the_constraint() -> None:
    instance, layout = middle_instance()
    crowded = Layout(
        row_I=np.zeros_like(layout.row_I), rank_I=layout.rank_I, num_rows=2
    )
    with pytest.raises(InfeasibleError, match=r"start 1 .* token cap"):
        anneal(instance, starts=[layout, crowded], stop=MaxSweeps(1), seed=0)
