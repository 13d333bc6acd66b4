"""Tiny instances of the three problems with their optima, for the certifier's tests."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import rpopt.layout.certificates
import rpopt.packing.rows
import rpopt.placement.certificates
from rpopt.certificate import Certificate
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance
from rpopt.placement.instance import PlacementInstance
from tests.layout.cases import random_instance as random_layout
from tests.oracle.layout import optimal_ticks
from tests.oracle.packing import min_cells
from tests.oracle.placement import optimal_peaks
from tests.packing.examples import make, tiny
from tests.placement.cases import TINY
from tests.placement.cases import instance as placement_instance

RECHECK: dict[str, Callable[[Certificate, Any], int]] = {
    "rows": rpopt.packing.rows.recheck,
    "placement": rpopt.placement.certificates.recheck,
    "layout": rpopt.layout.certificates.recheck,
}


def enclose(
    found: Sequence[Certificate], instance: Any, optima: Sequence[int]
) -> Sequence[Certificate]:
    """Assert that every claim is true and can be checked again."""
    for certificate, optimum in zip(found, optima, strict=True):
        assert certificate.lower <= optimum <= certificate.upper
        assert RECHECK[certificate.problem](certificate, instance) <= certificate.lower
        assert not certificate.closed or certificate.upper == optimum
    return found


def tiny_rows(seed: int) -> tuple[PackingInstance, list[int]]:
    """Any tiny instance, or one of two or three items to a cell: often harder."""
    instance = tiny(seed)
    if seed % 2:
        rng = np.random.default_rng(seed)
        weights = rng.integers(20, 60, rng.integers(9, 14)).tolist()
        instance = make(weights, 100, num_ranks=int(rng.integers(1, 3)))
    return instance, [instance.rows_for(min_cells(instance))]


def tiny_placement(seed: int) -> tuple[PlacementInstance, list[int]]:
    rng = np.random.default_rng(seed)
    per_rank, ranks = TINY[rng.integers(len(TINY))]
    top = int(rng.choice([3, 60, 10**9]))
    load_LE = rng.integers(0, top + 1, (rng.integers(1, 4), per_rank * ranks))
    instance = placement_instance(load_LE, ranks)
    return instance, optimal_peaks(instance).tolist()


def tiny_layout(seed: int) -> tuple[LayoutInstance, list[int]]:
    """A layout that exists; the first of a few draws where one does."""
    rng = np.random.default_rng(seed)
    while True:
        shapes = [(1, [0, 1]), (1, [0, 0]), (2, [0, 1]), (2, [0]), (1, [1, 0])]
        rows, shard_D = shapes[rng.integers(len(shapes))]
        items = int(rng.integers(rows * len(shard_D), 6))
        loose = random_layout(rng, items, rows, shard_D)
        low = int(loose.weight_I.max())
        instance = replace(
            loose,
            token_cap=int(rng.integers(low, loose.token_cap + 1)),
            coupling=str(rng.choice(["step", "row"])),
            max_samples_per_cell=[None, 2, 3][rng.integers(3)],
        )
        optimum = optimal_ticks(instance)
        if optimum is not None:
            return instance, [optimum]


DRAWS: dict[str, Callable[[int], tuple[Any, list[int]]]] = {
    "rows": tiny_rows,
    "placement": tiny_placement,
    "layout": tiny_layout,
}


OPEN_ROWS = make([26, 40, 55, 28, 58, 52, 58, 29, 40, 24, 43, 33], 100)


def open_layout() -> tuple[LayoutInstance, int]:
    rng = np.random.default_rng(8)
    instance = random_layout(rng, 5, 2, [0, 1])
    optimum = optimal_ticks(instance)
    assert optimum is not None
    return instance, optimum
