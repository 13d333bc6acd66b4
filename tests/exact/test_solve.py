"""Exact packing: agreement with brute force, known optima, targets and time limits."""

import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rpopt.errors import InfeasibleError, InstanceError, SolverError
from rpopt.exact import solve as module
from rpopt.exact.solve import ExactPacking, solve_packing
from rpopt.packing import bounds
from rpopt.packing.heuristics import first_fit_decreasing
from rpopt.packing.instance import PackingInstance, PackingSolution, check
from tests.oracle import packing as oracle

STOCK = PackingInstance(weight_I=[44] * 2 + [33] * 3 + [12] * 6, capacity=132)


def known(
    data_dir: Path, table: str, every: int
) -> Iterator[tuple[PackingInstance, int]]:
    """Instances of a table with their proven optima."""
    folder = "bpp-perfect-own" if table == "perfect_packing" else "bpp-esicup-cc0"
    with (data_dir / folder / f"{table}.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows[::every]:
        weight_I = np.array(row["items"].split(), dtype=np.int64)
        yield (
            PackingInstance(weight_I=weight_I, capacity=int(row["capacity"])),
            int(row["ub"]),
        )


def check_claims(instance: PackingInstance, packed: ExactPacking) -> None:
    """The packing is feasible, every bound below it, and the arithmetic ones hold."""
    assert check(instance, packed.solution) == []
    for bound in packed.bounds:
        assert bound.value <= packed.solution.num_cells
        if bound.kind == "arithmetic":
            assert bounds.recheck(instance, bound) == bound.value
    closed = packed.lower == packed.solution.num_cells
    assert closed == (packed.termination == "closed")


def triplets(num_cells: int, seed: int) -> PackingInstance:
    """Cells of 1000 filled by three items each: first fit misses them."""
    rng = np.random.default_rng(seed)
    large = rng.integers(380, 490, num_cells)
    middle = rng.integers(251, (1000 - large) // 2 + 1)
    weight_I = np.concatenate([large, middle, 1000 - large - middle])
    return PackingInstance(weight_I=weight_I, capacity=1000)


@pytest.mark.parametrize("limited", [False, True])
def test_tiny_instances_are_solved_as_by_brute_force(*, limited: bool) -> None:
    rng = np.random.default_rng(int(limited))
    for _ in range(25):
        num, capacity = int(rng.integers(1, 10)), int(rng.integers(5, 60))
        instance = PackingInstance(
            weight_I=rng.integers(1, capacity + 1, num),
            capacity=capacity,
            num_samples_I=rng.integers(1, 3, num) if limited else None,
            max_samples_per_cell=3 if limited else None,
        )
        packed = solve_packing(instance, time_limit_s=5)
        check_claims(instance, packed)
        optimum = oracle.min_cells(instance)
        assert packed.lower <= optimum <= packed.solution.num_cells
        if not limited:
            assert packed.termination == "closed"


def test_a_gap_of_one_is_proved_with_both_models_named(data_dir: Path) -> None:
    instance, optimum = next(known(data_dir, "waescher", every=1))
    packed = solve_packing(instance, time_limit_s=60)
    check_claims(instance, packed)
    assert packed.solution.num_cells == packed.lower == optimum == 15
    assert max(b.value for b in packed.bounds if b.kind == "arithmetic") == 14
    last = packed.bounds[-1]
    assert (last.name, last.kind) == ("arc_fixing", "solver")
    assert last.evidence["agreed"] == ["cover", "flow"]


def test_a_target_that_is_met_ends_the_search() -> None:
    instance = triplets(20, 0)
    first = first_fit_decreasing(instance)
    packed = solve_packing(instance, target_cells=first.num_cells, time_limit_s=30)
    assert packed.termination == "target"
    assert packed.solution.num_cells <= first.num_cells


def test_a_target_that_cannot_be_met_is_refuted() -> None:
    instance = triplets(20, 0)
    packed = solve_packing(instance, target_cells=19, time_limit_s=30)
    assert packed.termination in ("target refuted", "closed")
    assert packed.lower == 20
    check_claims(instance, packed)
    refuted = solve_packing(STOCK, target_cells=2, time_limit_s=30)
    assert refuted.lower == 3


def test_zero_slack_triplets_are_closed_the_same_way_twice() -> None:
    instance = triplets(25, 1)
    packed, again = (solve_packing(instance, time_limit_s=60) for _ in range(2))
    check_claims(instance, packed)
    assert packed.solution.num_cells == packed.lower == 25
    assert packed.solution == again.solution


def test_many_different_weights() -> None:
    rng = np.random.default_rng(0)
    weight_I = rng.integers(8192, 16385, 450)
    instance = PackingInstance(weight_I=weight_I, capacity=32768)
    seen: list[tuple[str, int, int]] = []
    packed = solve_packing(
        instance, time_limit_s=60, progress=lambda *event: seen.append(event)
    )
    check_claims(instance, packed)
    assert packed.statistics["types"] > 400
    assert packed.termination == "closed"
    assert packed.solution.num_cells < first_fit_decreasing(instance).num_cells
    assert seen[-1][1:] == (packed.lower, packed.solution.num_cells)


def test_rows_to_spare_are_met_by_coarse_weights() -> None:
    weight_I = np.random.default_rng(0).integers(2**15, 2**16 + 1, 1500)
    instance = PackingInstance(weight_I=weight_I, capacity=2**17)
    first = first_fit_decreasing(instance).num_cells
    seen: list[str] = []
    packed = solve_packing(
        instance,
        target_cells=first - 20,
        time_limit_s=60,
        progress=lambda method, *_: seen.append(method),
    )
    check_claims(instance, packed)
    assert packed.termination == "target"
    assert packed.solution.num_cells <= first - 20
    assert "coarse dive" in seen


def test_limited_samples_are_kept() -> None:
    instance = replace(triplets(12, 3), max_samples_per_cell=2)
    packed = solve_packing(instance, time_limit_s=5)
    check_claims(instance, packed)
    assert packed.lower >= 18


def test_a_start_is_checked_and_used() -> None:
    instance = triplets(10, 2)
    alone = PackingSolution(cell_I=np.arange(30))
    assert solve_packing(instance, start=alone, time_limit_s=30).lower == 10
    with pytest.raises(InfeasibleError, match="the start"):
        solve_packing(instance, start=PackingSolution(cell_I=np.zeros(30, int)))
    with pytest.raises(InstanceError, match="time_limit_s"):
        solve_packing(instance, time_limit_s=float("nan"))


@pytest.mark.parametrize("limit_s", [0.0, 1.0])
def test_the_time_limit_is_kept(limit_s: float) -> None:
    rng = np.random.default_rng(4)
    weight_I = rng.integers(16384, 32769, 2000)
    instance = PackingInstance(weight_I=weight_I, capacity=65536)
    begin_s = time.monotonic()
    packed = solve_packing(instance, time_limit_s=limit_s)
    assert time.monotonic() - begin_s < limit_s + 2
    check_claims(instance, packed)


def test_a_failing_solver_leaves_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise SolverError("HiGHS is gone")

    monkeypatch.setattr(module, "solve_full", fail)
    packed = solve_packing(STOCK, time_limit_s=5)
    assert packed.termination == "failure"
    assert "HiGHS is gone" in packed.statistics["failure"]
    check_claims(STOCK, packed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "every"),
    [
        ("falkenauer_t", 8),
        ("falkenauer_u", 12),
        ("scholl1", 144),
        ("scholl2", 96),
        ("schwerin1", 33),
        ("waescher", 3),
        ("hard28", 3),
        ("perfect_packing", 25),
    ],
)
def test_known_optima(data_dir: Path, table: str, every: int) -> None:
    for instance, optimum in known(data_dir, table, every):
        packed = solve_packing(instance, time_limit_s=60)
        check_claims(instance, packed)
        assert packed.lower <= optimum <= packed.solution.num_cells
        if table != "perfect_packing":
            assert packed.solution.num_cells == packed.lower
