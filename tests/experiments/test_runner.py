import json
import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments.runner import Outcome, Run, read_records, run_all
from rpopt.errors import FileFormatError


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    seeds: tuple[int, ...] = (0, 1, 2)


RUNS = [
    Run(problem="packing", instance="tiny", method="ffd", seed=seed, stop="none")
    for seed in Study().seeds
]
EXPECTED_KEYS = {
    *("schema", "problem", "instance", "instance_digest", "method", "seed", "params"),
    *("stop", "threads", "objective", "upper", "lower", "gap", "is_closed", "feasible"),
    *("termination", "runtime_s", "num_sweeps", "num_nodes", "metrics", "started_utc"),
    *("versions", "host", "commit", "dirty"),
}


def solve(run: Run, calls: Path) -> Outcome:
    with calls.open("a", encoding="utf-8") as file:
        file.write(f"{run.seed}\n")
    return Outcome(
        instance_digest="d",
        objective=1.25,
        upper=5,
        lower=4,
        feasible=True,
        termination="done",
        runtime_s=0.5,
        metrics={"rows": 5},
    )


def fail_on_one(run: Run, calls: Path) -> Outcome:
    if run.seed == 1:
        raise ValueError("no luck")
    return solve(run, calls)


def run_here(
    tmp_path: Path, runs: list[Run] = RUNS, **options: Any
) -> list[dict[str, Any]]:
    return run_all(
        runs,
        partial(solve, calls=tmp_path / "calls"),
        out=tmp_path / "out",
        config=Study(),
        **options,
    )


def seeds_called(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "calls").read_text().split()]


def test_a_record_says_what_was_run_and_what_came_out(tmp_path: Path) -> None:
    record = run_here(tmp_path)[1]
    assert set(record) == EXPECTED_KEYS
    assert (record["seed"], record["objective"]) == (1, 1.25)
    assert (record["gap"], record["is_closed"]) == (0.25, False)
    assert read_records(tmp_path / "out/runs.jsonl")[1] == record


def test_the_manifest_names_the_machine_kind_but_not_the_machine(
    tmp_path: Path,
) -> None:
    run_here(tmp_path)
    text = (tmp_path / "out/manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["config"] == {"seeds": [0, 1, 2]}
    assert manifest["seeds"] == [0, 1, 2]
    assert manifest["host"]["num_cpus"] >= 1
    assert manifest["versions"]["python"] == platform.python_version()
    assert {"commit", "dirty", "started_utc"} <= set(manifest)
    assert platform.node() not in text.split('"')


def test_the_manifest_is_written_before_the_first_run(tmp_path: Path) -> None:
    def stop_at_once(run: Run) -> Outcome:
        assert (tmp_path / "out/manifest.json").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(RUNS, stop_at_once, out=tmp_path / "out", config=Study())


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    first = run_here(tmp_path, RUNS[:2])
    again = run_here(tmp_path)
    assert again[:2] == first
    assert seeds_called(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [{"params": {"replicas": 8}}, {"stop": "5 s"}, {"threads": 2}, {"method": "nf"}],
)
def test_another_setting_is_another_run(tmp_path: Path, change: dict[str, Any]) -> None:
    setting: dict[str, Any] = {
        "problem": "packing",
        "instance": "tiny",
        "method": "ffd",
        "seed": 0,
        "stop": "none",
    }
    run_here(tmp_path, [Run(**setting)])
    run_here(tmp_path, [Run(**{**setting, **change})])
    assert seeds_called(tmp_path) == [0, 0]


def test_a_torn_last_line_is_run_again(tmp_path: Path) -> None:
    records = run_here(tmp_path)
    log = tmp_path / "out/runs.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    assert read_records(log) == records[:2]
    run_here(tmp_path)
    assert [record["seed"] for record in read_records(log)] == [0, 1, 2]
    assert seeds_called(tmp_path) == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [("{]", "runs.jsonl:2 is not JSON"), ('{"schema": "x"}', "not a record of schema")],
)
def test_a_damaged_line_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    run_here(tmp_path)
    log = tmp_path / "out/runs.jsonl"
    first, _, third = log.read_text().splitlines()
    log.write_text(f"{first}\n{line}\n{third}\n")
    with pytest.raises(FileFormatError, match=message):
        run_here(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_run_is_named_and_the_finished_ones_are_kept(
    tmp_path: Path, workers: int
) -> None:
    with pytest.raises(ValueError, match="no luck") as caught:
        run_all(
            RUNS,
            partial(fail_on_one, calls=tmp_path / "calls"),
            out=tmp_path / "out",
            config=Study(),
            workers=workers,
        )
    assert "seed=1" in caught.value.__notes__[0]
    kept = [record["seed"] for record in read_records(tmp_path / "out/runs.jsonl")]
    assert 1 not in kept
    if workers == 1:
        assert kept == [0]


def test_workers_change_nothing_but_the_time(tmp_path: Path) -> None:
    def strip(record: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in record.items() if key != "started_utc"}

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    alone = run_here(tmp_path / "a")
    spread = run_here(tmp_path / "b", workers=2)
    assert list(map(strip, alone)) == list(map(strip, spread))


def test_a_method_without_a_bound_has_no_gap() -> None:
    outcome = Outcome(
        instance_digest="d",
        objective=None,
        upper=None,
        lower=3,
        feasible=False,
        termination="time limit",
        runtime_s=1.0,
    )
    assert outcome.gap is None
    assert not outcome.is_closed
