"""`rpopt compare`: the table, and the user's own schedule."""

import json
from pathlib import Path
from typing import Any

import pytest

from rpopt.comparison import compare
from rpopt.io import read
from rpopt.plans import Plan
from tests.cases import medium_case
from tests.cli.command import Run, refused


@pytest.fixture
def schedule(tmp_path: Path, plan_file: Path) -> Path:
    """The plan itself as a schedule."""
    plan, window = read(plan_file, Plan), medium_case().window
    ranks = [plan.micro_batches(window, rank=d) for d in range(4)]
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps({"micro_batches": ranks}))
    return path


def test_every_row_is_what_the_library_says(
    run: Run, window_file: Path, plan_file: Path
) -> None:
    rows = run("compare", window_file, plan_file, "--json").json
    plan = read(plan_file, Plan)
    expected = compare(medium_case().window, plan)
    assert [row["method"] for row in rows] == [entry.method for entry in expected]
    for row, entry in zip(rows, expected, strict=True):
        assert (row["J"], row["rows"], row["fill"]) == (
            entry.j,
            entry.num_rows,
            entry.fill,
        )
        assert row["plan_speedup_%"] == pytest.approx(100 * (entry.j / plan.j - 1))
    assert "your schedule" not in {row["method"] for row in rows}


def test_a_schedule_gets_a_row(
    run: Run, window_file: Path, plan_file: Path, schedule: Path
) -> None:
    answer = run("compare", window_file, plan_file, "--schedule", schedule)
    assert answer.code == 0
    (line,) = [text for text in answer.out.splitlines() if "your schedule" in text]
    assert line.endswith("-")  # breaks nothing


def test_the_schedule_that_slime_trained_gets_a_row(
    run: Run, window_file: Path, plan_file: Path, schedule: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    shards = []
    for rank, rows in enumerate(json.loads(schedule.read_text())["micro_batches"]):
        partition = sorted(i for row in rows for i in row)
        indices = [[partition.index(i) for i in row] for row in rows]
        shard = {"data_parallel_rank": rank, "partition": partition}
        shards.append(shard | {"micro_batch_indices": indices})
    path = schedule.with_suffix(".pt")
    torch.save({"format_version": 2, "dp_shards": shards}, path)
    argv = ("compare", window_file, plan_file, "--json", "--schedule")
    rows = run(*argv, path).json
    assert rows == run(*argv, schedule).json
    (ours,) = [row for row in rows if row["method"] == "your schedule"]
    assert ours["peak"] > 0
    refused(run(*argv, schedule, schedule), "--schedule got 2 files")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda ranks: ranks.pop(), ("3 ranks; 4 ranks",)),
        (lambda ranks: ranks[0].pop(), ("equally many rows",)),
        (lambda ranks: ranks[0][0].append(40), ("names sample 40", "0 to 39")),
        (lambda ranks: ranks[0][0].append(ranks[0][0][0]), ("(2 times)",)),
        (lambda ranks: ranks[0][0].append(ranks[1][0][0]), ("in two cells",)),
        (lambda ranks: ranks[0][0].clear(), ("(0 times)",)),
        (lambda ranks: ranks[0][0].append(1.5), ("lists of sample ids",)),
        (lambda ranks: ranks[0].append(3), ("micro_batches[rank][row]",)),
    ],
)
def test_broken_schedules_are_refused(
    run: Run,
    window_file: Path,
    plan_file: Path,
    schedule: Path,
    edit: Any,
    words: tuple[str, ...],
) -> None:
    whole = json.loads(schedule.read_text())
    edit(whole["micro_batches"])
    schedule.write_text(json.dumps(whole))
    refused(run("compare", window_file, plan_file, "--schedule", schedule), *words)


def test_files_of_another_kind_are_no_schedule(
    run: Run, window_file: Path, plan_file: Path
) -> None:
    argv = ("compare", window_file, plan_file, "--schedule")
    refused(run(*argv, plan_file), str(plan_file), 'needs the key "micro_batches"')
    refused(run(*argv, window_file), str(window_file))
