"""Deadlines: every long computation looks at the clock, and what is known is kept.

A deadline in the past stands for one that passes in the middle: whatever would go on
for long has to notice it at its first look.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from rpopt.certifier import certify
from rpopt.errors import SolverError
from rpopt.exact import knapsack as knapsack_module
from rpopt.exact import solve as module
from rpopt.exact.arc_fixing import fix_arcs, full_network
from rpopt.exact.column_generation import bound_of, generate
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack, load_kernels
from rpopt.exact.master import Master
from rpopt.exact.pattern_cover import enumerate_patterns
from rpopt.exact.patterns import PatternPool
from rpopt.exact.search import Search
from rpopt.exact.solve import solve_packing
from rpopt.packing.heuristics import best_fit_decreasing, improve
from rpopt.packing.instance import PackingInstance, check
from rpopt.packing.knapsack import dual_weights
from rpopt.packing.subset import empty_last_cells, subset_sum_fill
from rpopt.stop import OutOfTimeError, require_time

PAST_S = -math.inf
TRIPLE = PackingInstance(
    weight_I=np.random.default_rng(0).integers(256, 500, 60), capacity=1000
)
TYPES = ItemTypes.of(TRIPLE)


def test_a_deadline_is_met_or_passed() -> None:
    require_time(math.inf)
    with pytest.raises(OutOfTimeError):
        require_time(PAST_S)


def stop_arc_fixing() -> object:
    values = bound_of(Knapsack(TYPES), TYPES.weight_K, TYPES.demand_K)
    return fix_arcs(full_network(TYPES, 21), [values], deadline_s=PAST_S)


def stop_enumeration() -> object:
    values = bound_of(Knapsack(TYPES), TYPES.weight_K, TYPES.demand_K)
    return enumerate_patterns(TYPES, [values], 21, 1000, deadline_s=PAST_S)


LONG: dict[str, Callable[[], object]] = {
    "pricing": lambda: Knapsack(TYPES, PAST_S).price(TYPES.weight_K, max_patterns=3),
    "arc fixing": stop_arc_fixing,
    "pattern enumeration": stop_enumeration,
    "checking a dual bound": lambda: dual_weights(
        TRIPLE, TRIPLE.weight_I, deadline_s=PAST_S
    ),
    "subset sums": lambda: subset_sum_fill(TRIPLE, deadline_s=PAST_S),
}


@pytest.mark.parametrize("name", LONG)
def test_every_long_computation_looks_at_the_clock(name: str) -> None:
    with pytest.raises(OutOfTimeError):
        LONG[name]()


def test_compiling_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack_module, "_use_kernels", lambda: time.sleep(0.5))
    began_s = time.monotonic()
    with pytest.raises(OutOfTimeError):
        load_kernels(began_s + 0.01)
    load_kernels(math.inf)


def test_heuristics_keep_the_packing_they_have() -> None:
    start = best_fit_decreasing(TRIPLE)
    assert improve(TRIPLE, start, lower=1, deadline_s=PAST_S) == start
    assert empty_last_cells(TRIPLE, start, deadline_s=PAST_S) == start
    assert improve(TRIPLE, start, lower=1).num_cells < start.num_cells


def test_column_generation_keeps_the_bound_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = PatternPool(TYPES.num_types)
    pool.add_cells(TYPES.cells(best_fit_decreasing(TRIPLE)))
    knapsack = Knapsack(TYPES)
    runs = 0
    price = Knapsack.price

    def stop_at_the_fourth(self: Knapsack, *args: object, **kwargs: object) -> object:
        nonlocal runs
        runs += 1
        self.deadline_s = PAST_S if runs == 4 else math.inf
        return price(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Knapsack, "price", stop_at_the_fourth)
    with Master(TYPES, pool) as master:
        found = generate(
            master,
            knapsack,
            TYPES.demand_K,
            num_fixed=0,
            stop_at=100,
            deadline_s=time.monotonic() + 60,
            converge=True,
        )
    assert runs == 4
    assert not found.converged
    assert found.bound.cells >= -(-int(TRIPLE.weight_I.sum()) // 1000)


@pytest.mark.parametrize(
    ("left_s", "termination"), [(1e6, "failure"), (0.0, "time limit")]
)
def test_a_solver_killed_at_the_deadline_has_not_failed(
    left_s: float, termination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(search: Search, *_: object) -> None:
        search.deadline_s = time.monotonic() + left_s
        raise SolverError("HiGHS was killed")

    monkeypatch.setattr(module, "solve_full", fail)
    assert solve_packing(TRIPLE, time_limit_s=60).termination == termination


def test_a_master_problem_that_hangs_is_ended() -> None:
    pool = PatternPool(TYPES.num_types)
    pool.add_cells(TYPES.cells(best_fit_decreasing(TRIPLE)))
    with pytest.raises(SolverError, match="killed"):
        Master(TYPES, pool, deadline_s=time.monotonic() - 60)


@pytest.mark.parametrize("limit_s", [0.0, 0.5])
def test_the_budget_holds_with_thousands_of_long_samples(limit_s: float) -> None:
    weight_I = np.random.default_rng(1).integers(2**15, 2**16, 4000)
    instance = PackingInstance(weight_I=weight_I, capacity=2**17, num_ranks=8)
    began_s = time.monotonic()
    (found,) = certify(instance, time_limit_s=limit_s)
    assert time.monotonic() - began_s < limit_s + 2
    assert found.termination == "time limit"
    assert found.lower < found.upper


@pytest.mark.slow
def test_memory_and_budget_at_full_size() -> None:
    code = """
import json, resource, time
from experiments.lengths import Lengths
from rpopt.certifier import certify
instance = Lengths(kind="trip", samples=8192, token_cap=131072).instance(1)
began_s = time.monotonic()
(found,) = certify(instance, time_limit_s=15)
over_s = time.monotonic() - began_s - 15
both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN  # HiGHS runs in a child
print(json.dumps([over_s, sum(resource.getrusage(who).ru_maxrss for who in both)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    over_s, peak_kib = json.loads(done.stdout)
    assert over_s < 2
    print(f"peak {peak_kib / 2**20:.2f} GiB")
    assert peak_kib < 2 * 2**20


def test_a_start_replaces_the_dearer_heuristics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "improve", None)
    found = solve_packing(TRIPLE, start=best_fit_decreasing(TRIPLE), time_limit_s=0)
    assert check(TRIPLE, found.solution) == []
