"""The partition bound: equals brute force, and holds however it is tampered with."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rpopt.certificate import Bound
from rpopt.certifier import certify
from rpopt.errors import CertificateError
from rpopt.placement import bounds, partition
from rpopt.placement.certificates import recheck
from rpopt.placement.instance import PlacementInstance
from rpopt.stop import OutOfTimeError
from tests.oracle.placement import optimal_peaks
from tests.placement.cases import TINY
from tests.placement.cases import instance as make


def tiny(seed: int) -> PlacementInstance:
    rng = np.random.default_rng(seed)
    per_rank, ranks = TINY[rng.integers(len(TINY))]
    top = int(rng.choice([2, 30, 10**9]))
    return make(rng.integers(0, top + 1, (1, per_rank * ranks)), ranks)


def peak_of(instance: PlacementInstance, rank_E: np.ndarray) -> int:
    per_rank = np.bincount(rank_E, minlength=instance.num_ep_ranks)
    assert (per_rank == instance.experts_per_rank).all()
    ranks = range(instance.num_ep_ranks)
    return max(int(instance.load_LE[0][rank_E == p].sum()) for p in ranks)


def narrowed(
    instance: PlacementInstance, upper: int, deadline_s: float = math.inf
) -> tuple[int, int, list[Bound]]:
    """From no bound at all; check everything that is found on the way."""
    lower, proved = 0, []
    for found in partition.narrow(
        instance, 0, lower=0, upper=upper, deadline_s=deadline_s
    ):
        if isinstance(found, Bound):
            assert lower < found.value <= upper
            assert bounds.recheck(instance, found) == found.value
            lower = found.value
            proved.append(found)
        else:
            peak = peak_of(instance, found)
            assert lower <= peak < upper
            upper = peak
    return lower, upper, proved


@pytest.mark.parametrize("seed", range(60))
def test_the_numbers_meet_at_the_optimum(seed: int) -> None:
    instance = tiny(seed)
    best = int(optimal_peaks(instance)[0])
    worst = int(instance.load_LE.sum())
    lower, upper, _ = narrowed(instance, worst)
    assert lower == upper == best
    assert narrowed(instance, best)[:2] == (best, best)


def test_below_the_mean_nothing_is_searched() -> None:
    instance = make([[3, 4, 5, 6]], 2)
    found = partition.search_below(instance, 0, 9)
    assert found is not None
    assert (found.rank_E, found.steps) == (None, 0)
    found = partition.search_below(instance, 0, 10)
    assert found is not None
    assert found.rank_E is not None
    assert peak_of(instance, found.rank_E) == 9


def thirty_two() -> PlacementInstance:
    """Experts as in a real layer: closed by no other bound."""
    rng = np.random.default_rng(2)
    return make(np.rint(1e5 * rng.lognormal(0, 0.5, (1, 32))).astype(int), 8)


def test_a_layer_of_thirty_two_experts_is_closed_by_arithmetic() -> None:
    instance = thirty_two()
    (found,) = certify(instance, time_limit_s=30)
    assert found.closed
    assert (found.best_bound.name, found.termination) == ("partition", "bound met")
    assert (
        recheck(found, instance) == found.upper > bounds.peak_bounds(instance)[0].value
    )


@pytest.mark.parametrize(
    ("name", "most"), [("MOST_EXPERTS", 31), ("MOST_SETS", 3), ("MOST_STEPS", 5)]
)
def test_what_is_too_large_is_left_alone(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = thirty_two()
    (found,) = certify(instance, time_limit_s=30)
    bound = found.best_bound
    monkeypatch.setattr(partition, name, most)
    assert partition.search_below(instance, 0, bound.value) is None
    with pytest.raises(CertificateError, match="too long to be repeated"):
        bounds.recheck(instance, bound)


def test_the_clock_ends_it_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the deadline passes: at the first look, the second, and so on."""
    instance = thirty_two()
    seen = set()
    monkeypatch.setattr(partition, "_STEPS_PER_LOOK", 500)
    (best,) = certify(instance, time_limit_s=30)
    for looks in range(0, 60, 3):
        left = iter(range(looks))

        def look(deadline_s: float, left: Iterator[int] = left) -> None:
            if deadline_s == 1.0 and next(left, None) is None:
                raise OutOfTimeError

        monkeypatch.setattr(partition, "require_time", look)
        lower, upper, _ = narrowed(instance, best.upper + 900, deadline_s=1.0)
        assert lower <= best.upper <= upper
        seen.add((lower, upper))
    assert len(seen) > 2


# ----------------------------------------------------------------------- the evidence


def test_steps_do_not_depend_on_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = thirty_two()
    _, upper, proved = narrowed(instance, 10**7)
    monkeypatch.setattr(partition, "_STEPS_PER_LOOK", 100)
    found = partition.search_below(instance, 0, upper)
    assert found is not None
    assert found.steps == proved[-1].evidence["steps"]


def test_tampering_shows() -> None:
    instance = thirty_two()
    _, upper, proved = narrowed(instance, 10**7)
    bound = proved[-1]
    assert bound.value == upper
    steps = bound.evidence["steps"]
    for evidence, words in (
        ({}, "fields"),
        ({"layer": 0, "steps": steps}, "fields"),
        ({"layer": 0, "ranks": 8, "steps": steps, "more": 1}, "fields"),
        ({"layer": 1, "ranks": 8, "steps": steps}, "layer 1"),
        ({"layer": True, "ranks": 8, "steps": steps}, "layer True"),
        ({"layer": 0, "ranks": 5, "steps": steps}, "5 ranks"),
        ({"layer": 0, "ranks": True, "steps": steps}, "True ranks"),
        ({"layer": 0, "ranks": 3, "steps": steps}, "has a placement below"),
        ({"layer": 0, "ranks": 8, "steps": steps + 1}, "steps; the evidence says"),
    ):
        with pytest.raises(CertificateError, match=words):
            bounds.recheck(instance, replace(bound, evidence=evidence))
    with pytest.raises(CertificateError, match="has a placement below"):
        bounds.recheck(instance, replace(bound, value=upper + 1))


# ------------------------------------------------------- the hottest experts of a layer


def test_hot_experts_close_a_layer_too_large_to_search() -> None:
    """Two of 256 experts on 64 ranks compete for the coldest companions."""
    rng = np.random.default_rng(0)
    load_E = np.rint(1e5 * rng.lognormal(0, 0.1, 256)).astype(int)
    load_E[:2] = 400_000, 399_000
    instance = make(load_E[None], 64)
    (found,) = certify(instance, time_limit_s=30)
    assert found.closed
    bound = found.best_bound
    assert (bound.name, bound.evidence["ranks"]) == ("partition", 2)
    assert recheck(found, instance) == found.upper
    assert found.upper > bounds.peak_bounds(instance)[0].value


@pytest.mark.parametrize("seed", range(60))
def test_the_hottest_experts_bound_the_optimum(seed: int) -> None:
    instance = tiny(seed)
    best = int(optimal_peaks(instance)[0])
    for ranks in partition._parts(instance):
        part, most = partition.hottest(instance, 0, ranks)
        assert min(int(optimal_peaks(part)[0]), most) <= best


def test_two_hot_experts_may_share_a_rank() -> None:
    """No bound above that is claimed, nor believed."""
    instance = make([[50, 50, 50, 50, 1, 1, 1, 1, 0, 0, 0, 0]], 3)
    _, most = partition.hottest(instance, 0, 2)
    assert most == 100
    _, _, proved = narrowed(instance, 500)
    assert all(b.value <= most for b in proved if b.evidence["ranks"] == 2)
    evidence = {"layer": 0, "ranks": 2, "steps": 0}
    bound = Bound(name="partition", kind="arithmetic", value=101, evidence=evidence)
    with pytest.raises(CertificateError, match="prove at most 100"):
        bounds.recheck(instance, bound)
