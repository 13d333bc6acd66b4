"""Planning by all DP ranks together: gather, search within a time budget, agree.

Whatever fails or is late on any rank, all ranks end with the same answer: the plan, or
the previous placement with a baseline packing. Only a rank that is lost stops them.

Axis letters: N samples, D DP ranks.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rpopt.cost import CostModel
from rpopt.errors import MismatchError
from rpopt.layout.arrange import from_packing
from rpopt.layout.baselines import token_karmarkar_karp
from rpopt.online.messages import (
    Deadline,
    Group,
    gather_bytes,
    gather_json,
    group_rank,
)
from rpopt.online.rank_plan import RankPlan, Times, cells_of, shares
from rpopt.online.samples import (
    LocalSamples,
    decode,
    encode,
    full_window,
    lengths_window,
)
from rpopt.packing.rows import certify_rows
from rpopt.planner import plan
from rpopt.plans import Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.records import Int64Array
from rpopt.rules import PackingRules
from rpopt.stop import StopCriterion
from rpopt.topology import Topology
from rpopt.window import Window

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all ranks plan for, the same everywhere.

    Parameters
    ----------
    topology, rules, cost, seed
        As in `rpopt.plan`; the ranks of the group are the DP ranks, in order.
    current
        The placement in force; None when the window has no routes.
    """

    topology: Topology
    rules: PackingRules
    cost: CostModel
    seed: int
    current: Placement | None = None

    @property
    def digest(self) -> str:
        """What has to be equal on all ranks."""
        records = (self.topology, self.rules, self.cost, self.current)
        parts = [record.digest[:16] if record else "-" for record in records]
        return " ".join([*parts, str(self.seed)])


def collective_plan(
    samples: LocalSamples,
    job: Job,
    *,
    stop: StopCriterion,
    group: Group,
    search_group: Any,
    timeout_s: float,
) -> RankPlan:
    """Plan the window that all ranks of a group bring together; every rank calls it.

    Parameters
    ----------
    samples
        What this rank brings; nothing is allowed too.
    job
        What to plan for.
    stop
        When the search ends; the first rank's counts.
    group
        The DP ranks; status, plans and digests are exchanged here.
    search_group
        A group of the same ranks for the search alone; None to let every rank search
        the whole population itself, which needs a stop that counts sweeps.
    timeout_s
        Limit of each wait: for the others' samples, for the search, for agreement
        (twice). A rank whose search takes longer is a failure like any other.

    Returns
    -------
    RankPlan
        The same plan on all ranks, each with its own cells. When anything failed on
        any rank, the previous placement and a baseline packing.

    Raises
    ------
    MismatchError
        On all ranks, when their jobs differ.
    InfeasibleError, InstanceError
        On all ranks, when not even the baseline can pack these lengths.
    CommunicationError
        When a rank is lost.
    """
    clock = _Clock()
    parts, failure = _gather(samples, job, group, Deadline(timeout_s))
    gather_s = clock.lap()
    answer = TimedCall(lambda: _search(parts, job, stop, search_group, timeout_s))
    found = None if failure else answer.result(timeout_s)
    search_s = clock.lap()
    digest = "" if found is None else found.digest
    reason = failure or _agree(answer.error, digest, group, Deadline(2 * timeout_s))
    times = Times(gather_s=gather_s, search_s=search_s, agree_s=clock.lap())
    if reason is not None or found is None:
        if group_rank(group) == 0:
            _log.warning(
                "planning failed; the previous placement and the baseline packing stay"
                " in force for this window: %s",
                reason,
            )
        window = lengths_window(parts)
        row_N, rank_N, num_rows = _baseline(window, job)
        found = None
    else:
        window = full_window(parts)
        row_N, rank_N = found.cell_of_sample(window)
        num_rows = found.layout.num_rows
    placement = job.current if found is None else found.placement or job.current
    cells = cells_of(group_rank(group), num_rows, rank_N, row_N)
    loss_N = np.concatenate([np.asarray(part.loss_tokens_N) for part in parts])
    counts_D = [part.num_samples for part in parts]
    return RankPlan(
        window=window,
        cells=cells,
        rank_of_sample_N=rank_N,
        row_of_sample_N=row_N,
        first_of_rank_D=np.cumsum([0, *counts_D])[:-1],
        token_weight_R=shares(cells, loss_N.astype(np.int64), rank_N >= 0),
        sample_weight_R=shares(cells, np.ones_like(rank_N), rank_N >= 0),
        placement=placement,
        plan=found,
        reason=reason,
        times=times,
    )


def _gather(
    samples: LocalSamples, job: Job, group: Group, deadline: Deadline
) -> tuple[list[LocalSamples], str | None]:
    """Return every rank's samples, and what is wrong with them, if anything."""
    header: dict[str, Any] = {"job": job.digest, "error": None}
    try:
        body = encode(samples)
    except Exception as error:  # whatever it is, the other ranks wait for an answer
        header["error"] = f"{type(error).__name__}: {error}"
        body = encode(LocalSamples(length_N=samples.length_N))
    message = json.dumps(header).encode() + b"\n" + body
    pieces = [
        answer.split(b"\n", 1)
        for answer in gather_bytes(message, group=group, deadline=deadline)
    ]
    headers = [json.loads(head) for head, _ in pieces]
    jobs = [head["job"] for head in headers]
    if len(set(jobs)) > 1:
        raise MismatchError(
            "ranks plan for different jobs (topology, rules, cost, placement, seed):"
            f" {jobs}; give all ranks the same"
        )
    if len(jobs) != job.topology.dp:
        raise MismatchError(
            f"the group has {len(jobs)} processes, the topology dp = {job.topology.dp};"
            " give the group of the DP ranks"
        )
    parts = [decode(body) for _, body in pieces]
    errors = [(rank, head["error"]) for rank, head in enumerate(headers)]
    return parts, _first_error(errors)


def _search(
    parts: list[LocalSamples],
    job: Job,
    stop: StopCriterion,
    search_group: Any,
    timeout_s: float,
) -> Plan:
    return plan(
        full_window(parts),
        job.topology,
        job.rules,
        job.cost,
        stop=stop,
        seed=job.seed,
        current=job.current,
        group=search_group,
        timeout_s=timeout_s / 2,
    )


class TimedCall(Generic[_T]):
    """A call on a thread of its own, which may be given up."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._found: _T | None = None
        self.error: str | None = None

    def result(self, timeout_s: float) -> _T | None:
        """Run, wait and return what came out; None, and `error`, if nothing did."""
        thread = threading.Thread(target=self._run, daemon=True, name="rpopt-search")
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            self.error = f"the search did not end within {timeout_s} s"
            return None
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._work()
        except Exception as error:  # becomes the status that all ranks see
            self.error = f"{type(error).__name__}: {error}"


def _agree(
    error: str | None, digest: str, group: Group, deadline: Deadline
) -> str | None:
    """Return why the plan cannot be used, the same on all ranks; None if it can."""
    errors = gather_json(error, group=group, deadline=deadline)
    failure = _first_error(enumerate(errors))
    if failure is not None:
        return failure
    digests = gather_json(digest[:16], group=group, deadline=deadline)
    if len(set(digests)) > 1:
        return f"ranks found different plans: {digests}"
    return None


def _first_error(errors: Any) -> str | None:
    return next((f"rank {rank}: {error}" for rank, error in errors if error), None)


def _baseline(window: Window, job: Job) -> tuple[Int64Array, Int64Array, int]:
    """Return row and rank of every sample and R, by tokens and lengths alone."""
    problems = WindowProblems(window, job.topology, job.rules, job.cost)
    rows = certify_rows(problems.packing)
    instance = problems.layout(None, rows.upper)
    packed = np.array(rows.witness["cell_I"], dtype=np.int64)
    layout = token_karmarkar_karp(instance) or from_packing(instance, packed)
    item_N = problems.items.item_of_sample_N
    kept_N = item_N >= 0
    row_N = np.where(kept_N, layout.row_I[item_N], -1)
    return row_N, np.where(kept_N, layout.rank_I[item_N], -1), rows.upper


class _Clock:
    def __init__(self) -> None:
        self._last_s = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        before_s, self._last_s = self._last_s, time.perf_counter()
        return self._last_s - before_s
