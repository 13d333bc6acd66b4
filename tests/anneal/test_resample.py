"""Resampling: temperatures and parents from energies."""

from collections import Counter

import numpy as np
import pytest

from rpopt.anneal.resample import Resampling, resample

T = 10**6


def step(energies: list[int], **changes: object) -> Resampling:
    settings: dict[str, object] = {
        "lowest": T // 2,
        "highest": T - 1,
        "culling": (1, 10),
        "seed": 0,
        "step": 0,
    }
    return resample(np.array(energies), T, **(settings | changes))  # type: ignore[arg-type]


def random_energies(size: int, spread: int = T) -> list[int]:
    rng = np.random.default_rng(size)
    return (10**12 + rng.integers(0, spread, size)).tolist()


def test_survivors_stay_and_the_population_keeps_its_size() -> None:
    found = step(random_energies(100, 3 * T))
    parents = found.parent_B
    assert len(parents) == 100
    assert all(parents[p] == p for p in parents)
    assert found.culled == 100 - len(set(parents))
    assert found.culled > 0


def test_lower_energies_have_more_children_as_exp_says() -> None:
    size = 1000
    energies = [10**9] * (size // 2) + [10**9 + T] * (size // 2)
    found = step(energies, lowest=T // 2, highest=T // 2)
    children = Counter(p < size // 2 for p in found.parent_B)
    assert children[True] / size == pytest.approx(1 / (1 + np.exp(-1)), abs=2 / size)


def test_the_culling_fraction_reaches_its_target() -> None:
    found = step(random_energies(1000, 5 * T), culling=(1, 10), lowest=1)
    energy = np.array(random_energies(1000, 5 * T), dtype=float)
    weight = np.exp(-(1 / found.temperature - 1 / T) * (energy - energy.min()))
    weight /= weight.mean()
    assert np.maximum(1 - weight, 0).mean() == pytest.approx(0.1, abs=0.002)


def test_equal_energies_take_the_largest_step_and_lose_nobody() -> None:
    found = step([5] * 8)
    assert found.temperature == T // 2
    assert found.parent_B == tuple(range(8))
    assert found.log_mean_weight == pytest.approx(5 / T - 5 / (T // 2))


def test_limits_of_the_step_are_kept() -> None:
    wild = [0] + [10**15] * 9
    assert step(wild, highest=T - 1000).temperature == T - 1000
    assert step(wild, lowest=T - 1000, highest=T - 1000).temperature == T - 1000


def test_one_replica_survives() -> None:
    assert step([123]).parent_B == (0,)


def test_the_offset_depends_on_seed_and_step_only() -> None:
    energies = random_energies(40, 4 * T)
    assert step(energies) == step(energies)
    others = {step(energies, step=n).parent_B for n in range(10)}
    assert len(others) > 1


def test_free_energy_of_a_gaussian_density() -> None:
    """For Gaussian energies log Z(b) - log Z(0) = -b mean + b**2 var / 2."""
    rng = np.random.default_rng(0)
    energy = rng.normal(50 * T, T, 200_000).astype(np.int64)
    found = step(energy.tolist(), lowest=T * 2 // 3, highest=T * 2 // 3)
    change = 1 / found.temperature - 1 / T
    expected = -change * energy.mean() + change**2 * energy.var() / 2
    assert found.log_mean_weight == pytest.approx(expected, abs=0.01)
