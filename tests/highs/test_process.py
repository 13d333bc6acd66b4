"""Children that hang, die, lie or lose their parent; the fakes speak the protocol."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rpopt.errors import SolverError
from rpopt.highs import (
    LinearModel,
    LpHandle,
    StartStatus,
    Termination,
    driver,
    process,
    solve,
)
from tests.highs.models import dense, knapsack, packing, placed

FAKE = """
import pickle, sys, time, signal, os, numpy as np
sys.path[:] = pickle.load(sys.stdin.buffer)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def say(*message):
    pickle.dump(message, sys.stdout.buffer)
    sys.stdout.buffer.flush()
def answer(**changes):
    base = dict(run="kOk", status="kOptimal", valid=True, objective=3.0, mip_bound=3.0,
                num_nodes=1, iterations=1, x=None, row_duals=None, reduced_costs=None)
    say("answer", {**base, **changes})
say("hello", "1.16.0")
name, request = pickle.load(sys.stdin.buffer)
presolve = request["options"].get("presolve")
"""

WEIGHTS = [6, 5, 5, 4, 4, 3, 3]
GOOD = placed(WEIGHTS, 5, [0, 1, 1, 2, 2, 3, 3])
Fake = Callable[[str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a function that puts a script in the place of the child."""

    def use(body: str) -> None:
        script = tmp_path / "fake_child.py"
        good = f"GOOD = np.array({GOOD.tolist()})\n"
        script.write_text(FAKE + good + textwrap.dedent(body))
        monkeypatch.setattr(process, "CHILD_SCRIPT", script)

    return use


def model() -> LinearModel:
    return packing(WEIGHTS, 10, 5)


def test_a_child_that_hangs_is_killed_and_its_last_words_are_kept(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "KILL_GRACE_S", 0.1)
    fake("""
        say("log", "Presolving model")
        say("progress", time.monotonic(), float("-inf"), float("inf"))
        say("incumbent", GOOD)
        say("progress", time.monotonic(), 2.25, 4.0)
        time.sleep(1000)
    """)
    begin_s = time.monotonic()
    result = solve(model(), time_limit_s=2)
    assert time.monotonic() - begin_s < 4
    assert result.termination is Termination.TIME_LIMIT_KILLED
    assert (result.objective, result.bound, result.raw_bound) == (4, 3, 2.25)
    assert [h[1:] for h in result.bound_history] == [(None, None), (2.25, 4.0)]
    assert "Presolving" in result.log_tail
    assert "killed" in result.failure
    assert not result.retried


def test_a_child_that_hangs_without_a_word_keeps_the_start(fake: Fake) -> None:
    fake("time.sleep(1000)")
    result = solve(model(), time_limit_s=0.3, start=GOOD)
    assert result.termination is Termination.TIME_LIMIT_KILLED
    assert (result.objective, result.bound) == (4, None)
    assert result.start_status is StartStatus.UNCONFIRMED


@pytest.mark.parametrize(
    "failure",
    [
        'answer(run="kError", status="kNotset")',
        'answer(run="kError", status="kSolveError")',
        'answer(status="kUnknown")',
        "answer(x=GOOD)",  # claims 3 cells; the point has 4
        'say("error", "RuntimeError: HiGHS answered kError to passModel")',
        "os.kill(os.getpid(), signal.SIGSEGV)",
    ],
)
def test_a_failure_is_retried_once_without_presolve(fake: Fake, failure: str) -> None:
    fake(
        f"""
        if presolve == "off":
            answer(x=placed)
        else:
            {failure}
    """.replace("x=placed", "x=GOOD, objective=4.0")
    )
    result = solve(model(), time_limit_s=20)
    assert result.retried
    assert not result.presolve
    assert result.termination is Termination.OPTIMAL
    assert (result.objective, result.bound) == (4, 3)
    assert result.failure


def test_two_failures_give_a_labelled_result_without_a_bound(fake: Fake) -> None:
    fake("""
        say("progress", time.monotonic(), 2.5, 4.0)
        answer(run="kError", status="kSolveError", mip_bound=2.5)
    """)
    result = solve(model(), time_limit_s=20, start=GOOD)
    assert result.termination is Termination.FAILED
    assert result.retried
    assert result.bound is result.raw_bound is None
    assert result.objective == 4
    assert "kSolveError" in result.failure


@pytest.mark.parametrize(
    "lie",
    [
        'answer(mip_bound=float("nan"))',
        "answer(valid=False)",
        'answer(mip_bound=float("-inf"))',
        'say("progress", time.monotonic(), float("nan"), 3.0); time.sleep(9)',
        'answer(status="kNeverSeen")',
    ],
)
def test_what_cannot_be_read_is_an_error(fake: Fake, lie: str) -> None:
    fake(lie)
    with pytest.raises(SolverError):
        solve(model(), time_limit_s=20)


@pytest.mark.parametrize(
    "lie", ["answer(mip_bound=5.0)", 'answer(status="kInfeasible")']
)
def test_a_contradiction_to_a_checked_point_is_an_error(fake: Fake, lie: str) -> None:
    fake(lie)
    with pytest.raises(SolverError, match="checked point has objective 4"):
        solve(model(), time_limit_s=20, start=GOOD)


def test_a_child_without_highspy_is_an_error(fake: Fake) -> None:
    fake("")
    process.CHILD_SCRIPT.write_text(
        "import pickle, sys\n"
        "pickle.dump(('error', 'No module named highspy'), sys.stdout.buffer)\n"
    )
    with pytest.raises(SolverError, match="No module named highspy"):
        solve(model(), time_limit_s=20)


def test_a_child_with_a_refused_version_is_an_error(fake: Fake) -> None:
    fake("")
    process.CHILD_SCRIPT.write_text(
        "import pickle, sys\npickle.dump(('hello', '1.14.0'), sys.stdout.buffer)\n"
    )
    with pytest.raises(SolverError, match=r"1\.14\.0 is refused"):
        solve(model(), time_limit_s=20)


def test_an_lp_that_hangs_ends_its_handle(fake: Fake) -> None:
    fake("""
        answer()  # to lp_load
        time.sleep(1000)
    """)
    with LpHandle(dense([1], [[1]], [1], [2])) as lp:
        begin_s = time.monotonic()
        result = lp.solve(time_limit_s=0.3)
        assert time.monotonic() - begin_s < 2.5
        assert result.status is Termination.TIME_LIMIT_KILLED
        assert result.x is result.objective is result.row_duals is None
        with pytest.raises(SolverError, match="closed"):
            lp.solve(time_limit_s=1)


def test_an_lp_whose_child_dies_is_an_error(fake: Fake) -> None:
    fake("answer(); pickle.load(sys.stdin.buffer); os._exit(3)")
    with (
        LpHandle(dense([1], [[1]], [1], [2])) as lp,
        pytest.raises(SolverError, match="code 3"),
    ):
        lp.solve(time_limit_s=10)


def test_an_exception_in_the_callback_ends_the_child() -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    before = children()
    with pytest.raises(KeyboardInterrupt):
        solve(knapsack(80), time_limit_s=60, on_progress=interrupt)
    assert children() == before


def test_several_solves_at_once() -> None:
    results = {}

    def work(seed: int) -> None:
        results[seed] = solve(knapsack(12, seed), time_limit_s=60)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, result in results.items():
        alone = solve(knapsack(12, seed), time_limit_s=60)
        assert result.objective == result.bound == alone.objective
    assert len(results) == 3


PARENT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in jobs
sys.path.insert(0, {root!r})
from rpopt.highs import solve
from tests.highs.models import knapsack
solve(knapsack(80), time_limit_s=600, on_progress=lambda _: print("run", flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_child_dies_with_its_parent(number: int) -> None:
    root = str(Path(__file__).resolve().parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(root=root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "run\n"
    (child,) = children(parent.pid)
    os.kill(parent.pid, number)
    parent.wait(timeout=10)
    parent.stdout.close()
    until_s = time.monotonic() + 5
    while alive(child) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not alive(child)


def test_the_child_stays_light() -> None:
    before = set(children())  # of other tests, such as a resource tracker
    with LpHandle(dense([1], [[1]], [1], [2])) as lp:
        (pid,) = set(children()) - before
        maps = Path(f"/proc/{pid}/maps").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        assert lp.solve(time_limit_s=10).objective == 1
    for module in ("torch", "scipy", "pyomo"):
        assert f"site-packages/{module}/" not in maps
    assert threads <= 4  # the main one, two watching the parent, at most one of HiGHS


def children(pid: int | None = None) -> list[int]:
    """The direct children of a process; skips where /proc does not tell."""
    pid = os.getpid() if pid is None else pid
    tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not tasks:
        pytest.skip("this system does not list the children of a process in /proc")
    return [int(word) for task in tasks for word in task.read_text().split()]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_solution_arrays_are_read_only() -> None:
    result = solve(dense([1], [[1]], [1], [2]), time_limit_s=10)
    assert result.row_duals is not None
    assert not result.row_duals.flags.writeable
    assert np.array_equal(result.row_duals, [1.0])
