"""What decides memory and speed in a plan: the numbers behind J.

Axis letters: L MoE layers, E experts, P EP ranks, G groups, R rows, S shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rpopt.checks import require_feasible
from rpopt.layout.evaluate import (
    LayoutCost,
    evaluate,
    group_and_member,
    group_totals,
)
from rpopt.layout.instance import check
from rpopt.placement.bounds import DecisiveExpert, decisive_experts
from rpopt.placement.instance import PlacementCost
from rpopt.placement.instance import evaluate as evaluate_placement
from rpopt.plans import Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.records import Int64Array
from rpopt.window import Window

PERCENTILES = (50, 95, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestLoad:
    """The most token copies that one EP rank receives in one group and layer."""

    copies: int
    layer_id: int
    row: int
    shard: int
    ep_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan, measured against its window.

    Parameters
    ----------
    cost
        The exact breakdown of J.
    largest_load
        Decides the activation memory of the experts; None with lengths only.
    load_percentiles_L3
        Median, 95 % and largest load over (group, EP rank), over the layer's mean.
    silent_experts_L
        Experts without a single token copy in the window.
    placement_cost
        Loads of the placement on aggregate demand; None with lengths only.
    fill
        Share of all cells' token cap that padded tokens fill.
    padding
        Share of the padded tokens that are padding.
    num_dropped, num_dummies
        Samples left out, and weightless fillers added.
    moved_experts_L
        Experts on another EP rank than in the current placement; None if not given.
    decisive_experts
        Layers in which one expert alone keeps the peak above the mean.
    notes
        Sentences that a reader of the numbers must know.
    """

    cost: LayoutCost
    largest_load: LargestLoad | None
    load_percentiles_L3: np.ndarray
    silent_experts_L: Int64Array
    placement_cost: PlacementCost | None
    fill: float
    padding: float
    num_dropped: int
    num_dummies: int
    moved_experts_L: Int64Array | None
    decisive_experts: tuple[DecisiveExpert, ...]
    notes: tuple[str, ...]


def report(window: Window, plan: Plan, current: Placement | None = None) -> PlanReport:
    """Measure a plan against its window and, if given, the placement in force.

    Raises
    ------
    MismatchError
        When the plan is for another window.
    InfeasibleError, InstanceError
        When the plan does not hold; see `rpopt.verify_plan`.
    """
    plan.require_window(window)
    problems = WindowProblems(window, plan.topology, plan.rules, plan.cost)
    items = problems.items_for(plan.layout.num_rows)
    instance = problems.layout(plan.placement, plan.layout.num_rows)
    require_feasible(check(instance, plan.layout), "the plan's layout")
    _, load_GLP = group_totals(instance, *group_and_member(instance, plan.layout))
    kept = items.kept_samples
    padded = (
        int(items.padded_tokens_I.sum()) - items.num_dummies * plan.rules.pad_multiple
    )
    moved = None
    if current is not None and plan.placement is not None:
        moved = plan.placement.num_moved(current)
    silent = np.zeros(0, dtype=np.int64)
    if problems.placement is not None:
        silent = (problems.placement.load_LE == 0).sum(axis=1)
    decisive = decisive_experts(problems.placement) if problems.placement else ()
    return PlanReport(
        cost=evaluate(instance, plan.layout),
        largest_load=_largest_load(window, plan, load_GLP),
        load_percentiles_L3=_percentiles(load_GLP),
        silent_experts_L=silent,
        placement_cost=_placement_cost(problems, plan),
        fill=padded / (instance.num_cells * instance.token_cap),
        padding=1 - int(window.length_N[kept].sum()) / padded,
        num_dropped=int(items.dropped_samples.size),
        num_dummies=items.num_dummies,
        moved_experts_L=moved,
        decisive_experts=decisive,
        notes=_notes(window, plan, kept, decisive),
    )


def _largest_load(
    window: Window, plan: Plan, load_GLP: Int64Array
) -> LargestLoad | None:
    if load_GLP.size == 0:
        return None
    assert window.layer_ids_L is not None
    group, layer, ep_rank = np.unravel_index(int(load_GLP.argmax()), load_GLP.shape)
    row, shard = divmod(int(group), plan.topology.num_shards)
    return LargestLoad(
        copies=int(load_GLP.max()),
        layer_id=int(window.layer_ids_L[layer]),
        row=row,
        shard=shard,
        ep_rank=int(ep_rank),
    )


def _percentiles(load_GLP: Int64Array) -> np.ndarray:
    """Return the percentiles of each layer's loads over its mean; 1 without load."""
    if load_GLP.size == 0:
        return np.zeros((0, len(PERCENTILES)))
    by_layer = np.moveaxis(load_GLP, 1, 0).reshape(load_GLP.shape[1], -1)
    mean = by_layer.mean(axis=1, keepdims=True)
    values = np.percentile(by_layer, PERCENTILES, axis=1).T
    return np.divide(values, mean, out=np.ones_like(values), where=mean > 0)


def _placement_cost(problems: WindowProblems, plan: Plan) -> PlacementCost | None:
    if problems.placement is None or plan.placement is None:
        return None
    return evaluate_placement(problems.placement, plan.placement)


def _notes(
    window: Window,
    plan: Plan,
    kept: Int64Array,
    decisive: Sequence[DecisiveExpert],
) -> tuple[str, ...]:
    notes = list(plan.topology.notes())
    pad = plan.rules.pad_multiple
    padded = -(-window.length_N[kept] // pad) * pad
    missing = int(padded.sum() - window.routed_N[kept].sum())
    if window.num_layers and missing:
        notes.append(
            f"{missing} tokens without a route or of padding are dispatched by the rule"
            f" {plan.rules.missing_routes!r}"
        )
    if decisive:
        notes.append(
            f"in {len(decisive)} of {window.num_layers} layers no permutation can reach"
            " the mean: one expert with its coldest possible companions exceeds it"
            " (column hot_expert)"
        )
    if not window.num_layers:
        notes.append("lengths only: no routes, attention alone is balanced")
    return tuple(notes)
