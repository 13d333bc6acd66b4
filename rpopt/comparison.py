"""All baselines beside a plan, under one evaluator.

Axis letters: I items, D DP ranks, R rows.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rpopt.checks import require_feasible
from rpopt.errors import InstanceError
from rpopt.items import DROPPED
from rpopt.layout.arrange import from_packing
from rpopt.layout.baselines import baselines
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.packing.heuristics import next_fit
from rpopt.packing.rows import recheck
from rpopt.placement.heuristics import eplb, identity
from rpopt.plans import Layout, Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.window import Window

Schedule = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One method under the plan's cost model.

    Parameters
    ----------
    method, placement
        How samples were laid out, and experts placed.
    num_rows
        R of this method.
    fill
        Share of all cells' token cap in use.
    j, attention, experts
        J and its two parts on the critical path.
    peak_copies
        The most token copies that one EP rank receives in one group and layer, which
        decides memory; None with lengths only.
    breaks
        The constraints that the method breaks, or None.
    """

    method: str
    placement: str
    num_rows: int
    fill: float
    j: float
    attention: float
    experts: float
    peak_copies: int | None = None
    breaks: str | None = None


def compare(
    window: Window, plan: Plan, schedule: Schedule | None = None
) -> list[Comparison]:
    """Return the plan, every baseline and the user's schedule, smallest J first.

    Parameters
    ----------
    schedule
        The user's own micro-batches: sample ids as `schedule[rank][row]`, evaluated
        with identity placement. Constraints it breaks are named, not refused.

    Raises
    ------
    MismatchError
        When the plan is for another window.
    CertificateError, InfeasibleError
        When the plan does not hold; see `rpopt.verify_plan`.
    InstanceError
        When the schedule has no value under the model: ranks with different numbers of
        rows, or samples missing, repeated or unknown.
    """
    plan.require_window(window)
    problems = WindowProblems(window, plan.topology, plan.rules, plan.cost)
    recheck(plan.rows, problems.packing)
    packed_I = np.array(plan.rows.witness["cell_I"], dtype=np.int64)
    placements = _placements(problems, plan)
    found = _next_fit(problems)
    for name, placement in placements.items():
        instance = problems.layout(placement, plan.layout.num_rows)
        for method, layout in baselines(instance, packed_I).items():
            found.append(_measure(method, name, instance, layout))
    require_feasible(check(instance, plan.layout), "the plan's layout")
    found.append(_measure("rpopt plan", name, instance, plan.layout))
    if schedule is not None:
        first, placement = next(iter(placements.items()))
        found.append(_measure_schedule(problems, schedule, first, placement))
    return sorted(found, key=lambda entry: entry.j)


def _placements(problems: WindowProblems, plan: Plan) -> dict[str, Placement | None]:
    """Return what stacks use first, the plan's placement last."""
    if problems.placement is None:
        return {"no experts": None}
    return {
        "identity": identity(problems.placement),
        "EPLB": eplb(problems.placement),
        "rpopt": plan.placement,
    }


def schedule_layout(problems: WindowProblems, schedule: Schedule) -> Layout:
    """Turn a user's micro-batches, `schedule[rank][row]`, into a layout.

    Raises
    ------
    InstanceError
        When ranks have different numbers of rows, bundles are torn apart, or samples
        are missing, repeated or unknown. Samples that the rules drop may be missing.
    """
    dp, num_rows = problems.topology.dp, len(schedule[0]) if schedule else 0
    if len(schedule) != dp or any(len(rows) != num_rows for rows in schedule):
        raise InstanceError(
            f"the schedule has {[len(rows) for rows in schedule]} rows on"
            f" {len(schedule)} ranks; {dp} ranks with equally many rows are needed"
        )
    item_N = problems.items.item_of_sample_N
    row_I = np.full(problems.items.num_items, -1)
    rank_I = np.full(problems.items.num_items, -1)
    seen_N = np.zeros(item_N.size, dtype=np.int64)
    for rank, rows in enumerate(schedule):
        for row, samples in enumerate(rows):
            for sample in samples:
                if not 0 <= sample < item_N.size:
                    raise InstanceError(
                        f"the schedule names sample {sample}; the window has samples 0"
                        f" to {item_N.size - 1}"
                    )
                seen_N[sample] += 1
                item = item_N[sample]
                if item == DROPPED:
                    continue
                if row_I[item] >= 0 and (row_I[item], rank_I[item]) != (row, rank):
                    raise InstanceError(
                        f"the schedule puts sample {sample} or its bundle in two cells"
                    )
                row_I[item], rank_I[item] = row, rank
    wrong = np.flatnonzero((seen_N > 1) | ((seen_N == 0) & (item_N != DROPPED)))
    if wrong.size:
        raise InstanceError(
            f"{wrong.size} samples are not scheduled exactly once, first sample"
            f" {wrong[0]} ({seen_N[wrong[0]]} times)"
        )
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=num_rows)


def _next_fit(problems: WindowProblems) -> list[Comparison]:
    """Next-fit in input order, with as many rows as it needs (Megatron-Core).

    Left out when that many rows cannot be filled.
    """
    solution = next_fit(problems.packing)
    num_rows = problems.packing.rows_for(solution.num_cells)
    missing = num_rows * problems.topology.dp - problems.items.num_items
    if missing > 0 and not problems.rules.dummies:
        return []
    placement = None
    if problems.placement is not None:
        placement = identity(problems.placement)
    instance = problems.layout(placement, num_rows)
    layout = from_packing(instance, solution.cell_I)
    return [_measure("next-fit", "identity", instance, layout)]


def _measure_schedule(
    problems: WindowProblems,
    schedule: Schedule,
    name: str,
    placement: Placement | None,
) -> Comparison:
    """Evaluate a schedule; its empty cells get dummies where items are too few."""
    rules, layout = problems.rules, schedule_layout(problems, schedule)
    roomy = copy.copy(problems)
    roomy.rules = replace(rules, dummies=True)
    instance = roomy.layout(placement, layout.num_rows)
    dummies = instance.num_items - layout.row_I.size
    cell_I = layout.row_I * instance.num_ranks + layout.rank_I
    empty = np.setdiff1d(np.arange(instance.num_cells), cell_I)[:dummies]
    row, rank = np.divmod(empty, instance.num_ranks)
    filled = Layout(
        row_I=np.concatenate([layout.row_I, row]),
        rank_I=np.concatenate([layout.rank_I, rank]),
        num_rows=layout.num_rows,
    )
    broken = set()
    if dummies and not rules.dummies:
        broken.add("empty cell")
    if layout.num_rows % rules.row_multiple:
        broken.add("row multiple")
    return _measure("your schedule", name, instance, filled, broken)


def _measure(
    method: str,
    placement: str,
    instance: LayoutInstance,
    layout: Layout,
    broken: Collection[str] = (),
) -> Comparison:
    cost = evaluate(instance, layout)
    constraints = {v.constraint for v in check(instance, layout)}.union(broken)
    attention = cost.critical(cost.attention_ticks_RSC).sum()
    experts = cost.critical(cost.expert_ticks_RSL).sum()
    return Comparison(
        method=method,
        placement=placement,
        num_rows=instance.num_rows,
        fill=float(instance.weight_I.sum()) / (instance.num_cells * instance.token_cap),
        j=cost.j,
        attention=float(attention) / instance.unit_ticks,
        experts=float(experts) / instance.unit_ticks,
        peak_copies=int(peaks.max()) if (peaks := cost.peak_load_RSL).size else None,
        breaks=", ".join(sorted(constraints)) or None,
    )
