"""Resumable runs: an append-only JSONL file that holds one record per finished run.

    <out>/manifest.json   config, seeds, commit, versions and machine; written first
    <out>/runs.jsonl      one record per line

A run is known by its key (instance, method, seed, digest of everything else that is
set), so starting again computes only what is missing.
"""

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.provenance import machine, provenance
from rpopt.errors import FileFormatError
from rpopt.records import canonical_json

SCHEMA = "rpopt.run/1"
MANIFEST_SCHEMA = "rpopt.manifest/1"

Key = tuple[str, str, int, str]
RunRecord = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One thing to compute.

    Parameters
    ----------
    problem, instance, method
        Their names.
    seed
        The seed of the method's generator.
    stop
        The stopping rule in words, such as "5 s" or "200 sweeps".
    params
        The method's parameters, as JSON values.
    threads
        How many threads the method may use.
    """

    problem: str
    instance: str
    method: str
    seed: int
    stop: str
    params: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1

    @property
    def key(self) -> Key:
        """Instance, method, seed, and the digest of the rest."""
        rest = [self.problem, self.stop, self.params, self.threads]
        digest = hashlib.sha256(canonical_json(rest).encode()).hexdigest()
        return self.instance, self.method, self.seed, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run found.

    Parameters
    ----------
    instance_digest
        The digest of the instance that was solved.
    objective
        The solution's objective as users read it, such as J; None without a solution.
    upper, lower
        Proven bounds on the optimum in the problem's integer unit; None if unknown.
    feasible
        Whether the checker accepted the solution.
    termination
        Why the method ended.
    runtime_s
        Seconds of the method alone, without reading the instance.
    num_sweeps, num_nodes
        The work done, for methods that count one of them.
    metrics
        More results that the experiment reports, as JSON values.
    """

    instance_digest: str
    objective: float | None
    upper: int | None
    lower: int | None
    feasible: bool
    termination: str
    runtime_s: float
    num_sweeps: int | None = None
    num_nodes: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """(upper - lower) / lower; None unless both are known."""
        if self.upper is None or self.lower is None:
            return None
        return (self.upper - self.lower) / max(1, self.lower)

    @property
    def is_closed(self) -> bool:
        """Whether the bounds meet."""
        return self.upper is not None and self.upper == self.lower


Solve = Callable[[Run], Outcome]


def run_all(
    runs: Sequence[Run], solve: Solve, *, out: Path, config: Any, workers: int = 1
) -> list[RunRecord]:
    """Return the records of the runs, in order; compute those that `out` lacks.

    Parameters
    ----------
    runs
        What to compute.
    solve
        Computes one run; a function at the top of a module when `workers` > 1.
    out
        The folder of the manifest and the records.
    config
        The dataclass that the runs were made from, for the manifest.
    workers
        Number of processes; with 1, everything runs in this one.
    """
    out.mkdir(parents=True, exist_ok=True)
    _write_manifest(out / "manifest.json", config, runs)
    path = out / "runs.jsonl"
    records = {key_of(record): record for record in read_records(path)}
    todo = {run.key: run for run in runs if run.key not in records}
    _drop_torn_line(path)
    origin = {**provenance(), "host": machine()}
    progress = tqdm(total=len(todo), unit="run", disable=None)
    with path.open("a", encoding="utf-8") as file, progress:
        for run, started_utc, outcome in _solved(todo.values(), solve, workers):
            record = _record(run, outcome, started_utc, origin)
            file.write(canonical_json(record) + "\n")
            file.flush()
            records[run.key] = record
            progress.update()
    return [records[run.key] for run in runs]


def read_records(path: Path) -> list[RunRecord]:
    """Return the finished records of a file; none when it does not exist.

    A last line without its newline was being written when the process died: it does
    not count.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_parse(line, f"{path}:{i}") for i, line in enumerate(lines, start=1)]


def key_of(record: RunRecord) -> Key:
    """Return the key of the run that a record is about."""
    return Run(**{part.name: record[part.name] for part in fields(Run)}).key


def _parse(line: bytes, where: str) -> RunRecord:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise FileFormatError(
            f"{where} is not JSON ({error}); remove that line and start again"
        ) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{where} is not a record of schema {SCHEMA}; write to another folder"
        )
    return record


def _drop_torn_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)


def _solved(
    runs: Iterable[Run], solve: Solve, workers: int
) -> Iterator[tuple[Run, str, Outcome]]:
    """Yield runs, start times and outcomes as they finish."""
    if workers == 1:
        for run in runs:
            yield _timed(run, solve)
        return
    # Forking a process that has started threads can deadlock its children.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(_timed, run, solve) for run in runs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _timed(run: Run, solve: Solve) -> tuple[Run, str, Outcome]:
    started_utc = _now_utc()
    try:
        return run, started_utc, solve(run)
    except Exception as error:
        error.add_note(f"in {run}")
        raise


def _record(
    run: Run, outcome: Outcome, started_utc: str, origin: Mapping[str, Any]
) -> RunRecord:
    return {
        "schema": SCHEMA,
        **asdict(run),
        **asdict(outcome),
        "gap": outcome.gap,
        "is_closed": outcome.is_closed,
        "started_utc": started_utc,
        **origin,
    }


def _write_manifest(path: Path, config: Any, runs: Sequence[Run]) -> None:
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "config": asdict(config),
        "seeds": sorted({run.seed for run in runs}),
        "num_runs": len(runs),
        **provenance(),
        "host": machine(),
        "started_utc": _now_utc(),
    }
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
