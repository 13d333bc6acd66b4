"""Bounds of column generation never exceed the optimum, whatever the master problem."""

import time
from pathlib import Path

import numpy as np
import pytest

from rpopt.exact.column_generation import DualBound, generate, whole_values
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.knapsack import Knapsack
from rpopt.exact.knots import first_knots, refined_knots, shares
from rpopt.exact.master import Master
from rpopt.exact.patterns import PatternPool
from rpopt.packing.heuristics import first_fit_decreasing
from rpopt.packing.instance import PackingInstance
from tests.exact.test_knapsack import random_instance
from tests.oracle import packing as oracle

ALL = 10**6  # a row for every type


def relax(
    instance: PackingInstance, num_knots: int, stop_at: int = 10**9
) -> tuple[tuple[DualBound, ...], float]:
    """Every bound on the way, and the master problem's last objective."""
    types = ItemTypes.of(instance)
    pool = PatternPool(types.num_types)
    pool.add_cells(types.cells(first_fit_decreasing(instance)))
    knot_M = None if num_knots == ALL else first_knots(types, num_knots)
    with Master(types, pool, knot_M) as master:
        relaxation = generate(
            master,
            Knapsack(types),
            types.demand_K,
            num_fixed=0,
            stop_at=stop_at,
            deadline_s=time.monotonic() + 30,
            converge=True,
        )
    assert relaxation.converged
    assert relaxation.point is not None
    return relaxation.history, relaxation.point.objective


@pytest.mark.parametrize("num_knots", [2, 4, ALL])
@pytest.mark.parametrize("limited", [False, True])
def test_no_bound_exceeds_the_optimum(num_knots: int, *, limited: bool) -> None:
    rng = np.random.default_rng(num_knots)
    for _ in range(4):
        instance = random_instance(rng, limited=limited)
        history, objective = relax(instance, num_knots)
        optimum = oracle.min_cells(instance)
        assert max(bound.cells for bound in history) <= optimum
        assert objective <= optimum + 1e-6
        if num_knots == ALL:  # a row for every type: both sides of the duality meet
            assert float(history[-1].ratio) == pytest.approx(objective, rel=1e-5)


def test_few_knots_relax_the_full_problem() -> None:
    rng = np.random.default_rng(1)
    weight_I = rng.integers(2500, 5001, 150)
    instance = PackingInstance(weight_I=weight_I, capacity=10_000)
    few, full = (relax(instance, knots)[0][-1].ratio for knots in (12, ALL))
    assert weight_I.sum() / 10_000 < few <= full
    assert full - few < full / 100


def test_knots_are_inside_and_shares_add_up() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        weight_I = rng.integers(1, 1001, int(rng.integers(1, 200)))
        types = ItemTypes.of(PackingInstance(weight_I=weight_I, capacity=1000))
        knot_M = first_knots(types, 6)
        assert knot_M[0] == types.weight_K[-1]
        assert knot_M[-1] == types.weight_K[0]
        more_M = refined_knots(types, knot_M, rng.normal(size=types.num_types))
        assert set(knot_M) <= set(more_M)
        share_KM = shares(types, more_M)
        assert share_KM.sum(axis=1) == pytest.approx(1)
        if more_M.size > 1:
            assert share_KM @ more_M == pytest.approx(types.weight_K)


def test_values_are_whole_and_never_negative() -> None:
    types = ItemTypes.of(PackingInstance(weight_I=[7, 5, 3], capacity=12))
    knapsack = Knapsack(types)
    value_K = whole_values(knapsack, np.array([0.5, 0.25, -0.1]))
    assert value_K.dtype == np.int64
    assert value_K[2] == 0
    assert value_K[0] == pytest.approx(2 * value_K[1], rel=1e-6)
    assert (whole_values(knapsack, np.zeros(3)) == 1).all()


def test_cells_never_hold_more_than_there_is() -> None:
    """Two of 44, three of 33, six of 12 in 132: without the demand, 259/132 < 2."""
    instance = PackingInstance(weight_I=[44] * 2 + [33] * 3 + [12] * 6, capacity=132)
    history, objective = relax(instance, ALL)
    assert objective == pytest.approx(23 / 11)
    assert history[-1].cells == oracle.min_cells(instance) == 3


@pytest.mark.slow
def test_bounds_of_instances_with_known_optima(data_dir: Path) -> None:
    from tests.exact.test_solve import known

    for table in ("hard28", "waescher", "falkenauer_t"):
        for instance, optimum in known(data_dir, table, every=6):
            history, _ = relax(instance, ALL)
            assert optimum - 1 <= max(b.cells for b in history) <= optimum
