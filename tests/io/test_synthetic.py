"""Synthetic windows: exact sums, published statistics, determinism, memory."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.io.synthetic import cap_at_tokens, correlated_scores, synthetic_window
from rpopt.window import Window

SMALL = {"num_samples": 20, "num_layers": 3, "num_experts": 8, "top_k": 2}


def draw(**changes: Any) -> Window:
    return synthetic_window(**{"seed": 1, **SMALL} | changes)


def intraclass_correlation(values: np.ndarray, group_size: int = 8) -> float:
    groups = values.reshape(-1, group_size)
    between = group_size * groups.mean(axis=1).var(ddof=1)
    within = groups.var(axis=1, ddof=1).mean()
    return float((between - within) / (between + (group_size - 1) * within))


@pytest.mark.parametrize(
    ("num_experts", "top_k"),
    [(1, 1), (2, 2), (8, 7), (8, 8), (32, 4), (129, 8), (512, 10)],
)
def test_sums_are_exact_and_no_token_visits_an_expert_twice(
    num_experts: int, top_k: int
) -> None:
    window = draw(num_experts=num_experts, top_k=top_k, max_length_tokens=500)
    assert window.demand_NLE is not None
    assert np.array_equal(window.routed_N, window.length_N)
    assert (window.demand_NLE <= window.length_N[:, None, None]).all()
    assert window.length_N.min() >= 1
    assert window.length_N.max() <= 500
    assert window.prompt_group_N is not None
    assert np.bincount(window.prompt_group_N).tolist() == [8, 8, 4]
    assert window.origin.startswith("synthetic: seed 1")


def test_one_token_samples_are_possible() -> None:
    window = draw(max_length_tokens=1, num_experts=16, top_k=4)
    assert window.demand_NLE is not None
    assert set(np.unique(window.demand_NLE)) == {0, 1}


def test_same_seed_same_window() -> None:
    assert draw() == draw()
    assert draw(seed=2) != draw()
    assert draw(seed=-7) == draw(seed=-7)


def test_lengths_follow_the_published_quantiles() -> None:
    window = draw(num_samples=64_000, routes=False)
    assert window.demand_NLE is None
    found = np.quantile(window.length_N, [0.1, 0.5, 0.9, 0.99])
    assert found == pytest.approx([287, 792, 3432, 12607], rel=0.06)
    assert window.length_N.mean() == pytest.approx(1527, rel=0.06)
    assert window.length_N.max() == 32768


def test_lengths_are_correlated_within_a_prompt_group() -> None:
    for correlation in (0.0, 0.5, 1.0):
        window = draw(num_samples=16_000, routes=False, length_correlation=correlation)
        found = intraclass_correlation(np.log(window.length_N))
        assert found == pytest.approx(correlation, abs=0.05)


def test_own_quantiles_are_followed() -> None:
    window = draw(
        num_samples=20_000, routes=False, length_quantiles={0.25: 100, 0.75: 400}
    )
    found = np.quantile(window.length_N, [0.25, 0.5, 0.75])
    assert found == pytest.approx([100, 200, 400], rel=0.05)


@pytest.mark.parametrize(("num_experts", "top_k"), [(32, 4), (128, 8), (512, 8)])
def test_experts_are_skewed_as_published(num_experts: int, top_k: int) -> None:
    window = draw(
        num_samples=256, num_layers=6, num_experts=num_experts, top_k=top_k, seed=3
    )
    demand = window.demand_NLE
    assert demand is not None
    total = demand.sum(axis=0, dtype=np.int64)
    skew_L = total.max(axis=1) / total.mean(axis=1)
    assert 1.5 < skew_L.min() <= skew_L.max() < 6
    assert 2 < np.median(skew_L) < 5
    sample_skew = np.median(demand.max(axis=2) / demand.mean(axis=2))
    assert np.median(skew_L) < sample_skew < 6.5


def test_samples_of_one_prompt_route_alike() -> None:
    window = draw(num_samples=64, num_layers=4, num_experts=64, top_k=8)
    assert window.demand_NLE is not None
    share = window.demand_NLE / window.length_N[:, None, None]
    flat = (share / share.mean(axis=0)).reshape(64, -1)
    alike = np.corrcoef(flat)
    same = np.kron(np.eye(8), np.ones((8, 8))).astype(bool) & ~np.eye(64, dtype=bool)
    other = ~np.kron(np.eye(8), np.ones((8, 8))).astype(bool)
    assert alike[same].mean() > 0.7
    assert alike[other].mean() < 0.3


def test_peak_memory_is_little_more_than_the_demand() -> None:
    tracemalloc.start()
    try:
        window = draw(num_samples=256, num_layers=16, num_experts=1024, top_k=8)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert window.demand_NLE is not None
    assert peak < 1.3 * window.demand_NLE.nbytes + 12e6


@pytest.mark.parametrize(
    "changes",
    [
        {"num_samples": 0},
        {"group_size": 0},
        {"top_k": 9},
        {"max_length_tokens": 2**31},
        {"length_correlation": 1.5},
        {"length_quantiles": {0.5: 100}},
        {"length_quantiles": {0.5: 100, 0.2: 50}},
        {"length_quantiles": {0.5: 100, 1.0: 200}},
        {"length_quantiles": {0.2: 0, 0.5: 100}},
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InstanceError):
        draw(**changes)


def test_capping_keeps_sums() -> None:
    demand = np.array([[[9, 1, 0], [0, 0, 10]], [[2, 2, 2], [6, 0, 0]]])
    capped = cap_at_tokens(demand.copy(), np.array([5, 3]))
    assert np.array_equal(capped.sum(axis=2), demand.sum(axis=2))
    assert (capped <= np.array([5, 3])[:, None, None]).all()
    assert capped[1, 0].tolist() == [2, 2, 2]


def test_scores_are_standard_normal() -> None:
    scores = correlated_scores(np.random.default_rng(0), 40_000, 8, 0.6)
    assert scores.std() == pytest.approx(1, abs=0.03)
    assert intraclass_correlation(scores) == pytest.approx(0.6, abs=0.02)
