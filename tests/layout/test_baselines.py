"""Baselines keep every constraint, are no better than the optimum, and good enough."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.io.reference import WINDOWS, read_reference
from rpopt.layout.baselines import METHODS, SPLIT, baselines
from rpopt.layout.bounds import layout_bounds
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.packing.rows import certify_rows
from rpopt.placement.heuristics import identity, lpt
from rpopt.problems import WindowProblems
from tests.layout.cases import instance, random_instance, tiny_instances
from tests.oracle.layout import feasible_layouts, optimal_ticks

# Columns "id + token" and "agg + att" of the prototype that came with the windows.
PROTOTYPE = {
    "w1": (1.361, 1.130),
    "w2": (1.332, 1.081),
    "w3": (1.583, 1.390),
    "w4": (1.250, 1.067),
    "w5": (1.086, 1.038),
    "w6": (1.327, 1.148),
}


def costs(problem: LayoutInstance, packed_I: np.ndarray) -> dict[str, int]:
    found = baselines(problem, packed_I)
    for name, layout in found.items():
        assert check(problem, layout) == [], name
    return {name: evaluate(problem, layout).j_ticks for name, layout in found.items()}


@given(tiny_instances())
@settings(deadline=None, max_examples=40)
def test_no_baseline_beats_the_optimum(problem: LayoutInstance) -> None:
    some = next(feasible_layouts(problem), None)
    if some is None:
        assert all(method(problem) is None for method in METHODS.values())
    else:
        packed_I = some.row_I * problem.num_ranks + some.rank_I
        optimum = optimal_ticks(problem)
        assert optimum is not None
        assert min(costs(problem, packed_I).values()) >= optimum


@given(st.integers(0, 2**32), st.sampled_from(["step", "row"]), st.booleans())
@settings(deadline=None, max_examples=30)
def test_all_baselines_are_feasible(seed: int, coupling: str, limited: bool) -> None:
    rng = np.random.default_rng(seed)
    problem = random_instance(
        rng,
        60,
        3,
        [0, 1, 0, 1],
        coupling=coupling,
        max_samples_per_cell=7 if limited else None,
    )
    layout = METHODS["LPT, equal count"](problem)
    assert layout is not None
    cell_I = layout.row_I * problem.num_ranks + layout.rank_I
    assert set(costs(problem, cell_I)) >= {"LPT, tokens", "LPT, equal count", SPLIT}


def test_the_same_layouts_every_time() -> None:
    problem = random_instance(np.random.default_rng(1), 60, 3, [0, 1, 0, 1])
    first, second = (baselines(problem, np.arange(60) % 12) for _ in range(2))
    assert first == second


def test_a_full_packing_becomes_a_baseline_where_all_rules_fail() -> None:
    """Cells of 4 11, 7 7 1, 10 3 2 and 4 9 2 are full to the last token."""
    weight_I = [7, 4, 4, 9, 10, 3, 2, 11, 7, 2, 1]
    problem = instance(
        weight_I=weight_I,
        num_samples_I=[1] * 11,
        attention_ticks_IC=[[w] for w in weight_I],
        load_ILP=np.zeros((11, 1, 1)),
        token_cap=15,
    )
    assert all(method(problem) is None for method in METHODS.values())
    packed_I = np.array([1, 0, 3, 3, 2, 2, 2, 0, 1, 3, 1])
    assert list(costs(problem, packed_I)) == [SPLIT]


@pytest.mark.parametrize("name", PROTOTYPE)
def test_the_reference_windows(name: str, data_dir: Path) -> None:
    problems = WindowProblems(*read_reference(data_dir / WINDOWS, name))
    assert problems.placement is not None
    rows = certify_rows(problems.packing)
    packed_I = np.array(rows.witness["cell_I"])
    today, best = PROTOTYPE[name]
    for place, reached in ((identity, today), (lpt, best)):
        problem = problems.layout(place(problems.placement), rows.upper)
        found = costs(problem, packed_I)
        lower = max(bound.value for bound in layout_bounds(problem))
        assert lower <= min(found.values()) <= reached * problem.unit_ticks
    if name == "w6":  # 99.4 % full: only what starts from cells of similar attention
        assert {"LPT, attention", SPLIT} <= set(found)
