"""Stop criteria."""

import time

import pytest

from rpopt.errors import InstanceError
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion


def stops(criterion: StopCriterion, sweeps: int) -> bool:
    return criterion(sweeps=sweeps, best=10, bound=5)


def test_sweeps() -> None:
    criterion = MaxSweeps(3)
    criterion.reset()
    assert [stops(criterion, n) for n in (0, 2, 3, 4)] == [False, False, True, True]
    assert stops(MaxSweeps(0), 0)


def test_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    criterion = MaxRuntime(5.0)
    now_s[0] = 104.0
    assert not stops(criterion, 10**9)
    now_s[0] = 105.0
    assert stops(criterion, 0)
    criterion.reset()
    assert not stops(criterion, 0)


def test_the_first_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    criterion = FirstOf([MaxRuntime(5.0), MaxSweeps(3)])
    assert not stops(criterion, 2)
    assert stops(criterion, 3)
    now_s[0] = 6.0
    assert stops(criterion, 2)
    criterion.reset()
    assert not stops(criterion, 2)


@pytest.mark.parametrize("seconds_s", [-1.0, float("nan")])
def test_bad_time_limits_are_refused(seconds_s: float) -> None:
    with pytest.raises(InstanceError, match="a time limit of .* must be >= 0"):
        MaxRuntime(seconds_s)


def test_bad_sweep_limits_are_refused() -> None:
    with pytest.raises(InstanceError, match="a limit of -1 sweeps"):
        MaxSweeps(-1)


def test_a_search_without_an_end_is_refused() -> None:
    with pytest.raises(InstanceError, match="never end"):
        FirstOf([])
