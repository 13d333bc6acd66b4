import csv
import math
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import (
    anneal_methods,
    anneal_moves,
    anneal_quality,
    anneal_sizes,
    anneal_windows,
)
from experiments.anneal_cases import Generated, case
from experiments.anneal_tables import Records, population, target
from experiments.config import read_config
from rpopt.anneal import AnnealResult, anneal
from rpopt.anneal.moves import Kind
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import check
from rpopt.stop import MaxSweeps

CONFIGS = Path(anneal_quality.__file__).parent / "configs"
TINY = Generated(
    name="tiny", samples=24, dp=4, ep=2, token_cap=8192, layers=2, experts=8
)


def record(method: str, seed: int, j: float, stop: str = "1 s") -> dict[str, object]:
    metrics = {"population": 4, "bound": 1.0}
    return {
        "instance": "w1",
        "method": method,
        "seed": seed,
        "stop": stop,
        "objective": j,
        "metrics": metrics,
    }


def test_every_method_works_and_none_beats_the_best_known(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    config = CONFIGS / "anneal_quality_smoke.toml"
    anneal_quality.main(["--config", str(config), "--out", str(tmp_path)])
    with (tmp_path / "anneal_generated.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["bound"]) <= float(row["best known"])
    assert float(row["best known"]) <= float(row["best baseline"])
    with (tmp_path / "anneal_cp_sat.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["CP-SAT's bound"]) <= float(row["CP-SAT"])


def test_committed_study_is_readable() -> None:
    study = read_config(CONFIGS / "anneal_quality.toml", anneal_quality.Study)
    names = {source.name for source in study.generated}
    for batch in study.batches:
        assert set(batch.methods) <= anneal_methods.METHODS.keys()
        assert {n for n in batch.cases if not n.startswith("w")} <= names


def test_cpu_seconds_do_not_pass_while_asleep() -> None:
    with anneal_methods.cpu_clock():
        began_s = time.monotonic()
        time.sleep(0.5)
        assert time.monotonic() - began_s < 0.25


def test_cp_sat_model_sees_what_the_evaluator_sees() -> None:
    cp_sat = pytest.importorskip("experiments.anneal_peers").cp_sat
    known = case(TINY)
    hint = known.baselines[known.best_baseline]
    answer = cp_sat(known.instance, hint, limit_s=2.0, seed=0, threads=8)
    assert check(known.instance, answer.layout) == []
    j = evaluate(known.instance, answer.layout).j
    assert j < answer.model_j + 1e-5
    assert answer.bound <= j <= evaluate(known.instance, hint).j


def test_an_ablation_compares_every_kind_with_all() -> None:
    row = anneal_moves.ablation(TINY, 0.05, 2)
    assert row["case"] == "tiny"
    assert len(row) == 2 + len(Kind)
    for name, pattern in anneal_moves.PATTERNS.items():
        missing = {kind for kind in Kind if kind not in pattern}
        assert {f"no {kind.name.lower()}" for kind in missing} <= {name}
        assert len(missing) == (name != anneal_moves.ALL)


def annealed(population: int) -> AnnealResult:
    known = case(TINY)
    return anneal(
        known.instance,
        starts=[known.baselines[known.best_baseline]],
        stop=MaxSweeps(30),
        seed=0,
        population=population,
    )


def test_times_and_gaps_of_warm_and_cold_runs() -> None:
    result = annealed(4)
    last = result.history[-1]
    assert anneal_windows.time_to(result, result.j_ticks) == last.seconds_s
    assert anneal_windows.time_to(result, result.j_ticks - 1) == math.inf
    exact, missed = (result, result.j_ticks), (result, result.j_ticks / 2)
    row = anneal_windows.gaps([[exact], [missed], [exact]])
    assert (row["cold, %"], row["warm, %"]) == ("100.00", "0.00")
    assert row["cold, s to 0.5 %"] == "never"
    assert float(row["warm, s to 0.5 %"]) <= last.seconds_s + 0.005


def test_sizes_are_compared_with_a_single_chain() -> None:
    one, four = annealed(1), annealed(4)
    row = anneal_sizes.against_one(1.0, 4, [{1: one, 4: four}])
    ratio = 100 * (four.j_ticks / one.j_ticks - 1)
    assert row["population"] == 4
    assert float(row["J over that of 1, mean %"]) == pytest.approx(ratio, abs=6e-4)
    assert (row["better"], row["worse"]) == (ratio < 0, ratio > 0)


def test_disturbed_instance_holds_the_same_items() -> None:
    known = case(TINY)
    other = known.variants["samples"]
    assert np.count_nonzero(other.weight_I != known.instance.weight_I) <= 2
    assert sorted(other.weight_I) == sorted(known.instance.weight_I)
    assert np.array_equal(
        other.load_ILP.sum(axis=0), known.instance.load_ILP.sum(axis=0)
    )


def test_shares_and_ratios() -> None:
    found = Records(
        [
            record("baselines", 0, 1.5, "0 s"),
            record("annealing", 0, 1.0),
            record("annealing", 1, 1.05),
            record("population 1", 0, 1.25),
        ]
    )
    first, second = target(found, ["w1"])
    assert (first["pairs"], first["within 2 %"]) == (2, "50 %")
    assert first["below every baseline"] == "100 %"
    assert second["worst gap, %"] == "25.00"
    (row,) = population(found, ["w1"])
    assert row["J / J of population 1"] == "0.80000"
    assert (row["pairs"], row["better"], row["worse"]) == (1, 1, 0)
