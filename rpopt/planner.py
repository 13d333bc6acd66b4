"""The hierarchical planner, on one page.

Placement first (aggregate demand, per layer), then the certified number of rows, then
the layout: baselines, the caller's starts and population annealing from the best of
them, in turn with placements for the groups of the layout (`rpopt.planner_joint`).
Every solution passes the one checker and the one evaluator before it is reported.
"""

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rpopt.anneal import HistoryPoint
from rpopt.checks import require_feasible
from rpopt.cost import CostModel
from rpopt.errors import MismatchError
from rpopt.layout.baselines import baselines
from rpopt.layout.bounds import layout_bounds
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance, check
from rpopt.layout.rows import order_rows
from rpopt.packing.rows import certify_rows
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.heuristics import place
from rpopt.planner_joint import refine
from rpopt.plans import Layout, Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import StopCriterion
from rpopt.topology import Topology
from rpopt.window import Window

Progress = Callable[[float, float], None]
"""Called with the seconds of annealing and J at each new best."""


def plan(
    window: Window,
    topology: Topology,
    rules: PackingRules,
    cost: CostModel,
    *,
    stop: StopCriterion,
    seed: int,
    starts: Sequence[Plan] = (),
    current: Placement | None = None,
    progress: Progress | None = None,
    group: Any = None,
    timeout_s: float = 60.0,
) -> Plan:
    """Plan one window: place, pack, lay out.

    Parameters
    ----------
    window, topology, rules, cost
        What to plan for; see their types.
    stop
        When the search ends; it always returns the best plan so far.
    seed
        Same seed, same inputs and the same number of sweeps give the same plan.
    starts
        Plans of this window that the annealing may start from; the result is never
        worse than the best of them under the placement chosen here.
    current
        The placement now in force; experts that need not move keep their slot.
    progress
        Called with the seconds of annealing and J at each new best.
    group, timeout_s
        Processes that share the annealing, all of which call this with the same
        arguments and get the same plan; how long they wait for each other. See
        `rpopt.anneal.anneal`.

    Raises
    ------
    RpoptError
        When no plan exists, or an input does not fit the others.
    """
    problems = WindowProblems(window, topology, rules, cost)
    placement = choose_placement(problems, current, seed)
    rows = certify_rows(problems.packing)
    instance = problems.layout(placement, rows.upper)
    packed = np.array(rows.witness["cell_I"], dtype=np.int64)
    candidates = list(baselines(instance, packed).values())
    candidates += [_start_layout(start, window, instance) for start in starts]

    def report(point: HistoryPoint) -> None:
        assert progress is not None
        progress(point.seconds_s, point.best_ticks / instance.unit_ticks)

    found = refine(
        problems,
        placement,
        instance,
        starts=candidates,
        stop=stop,
        seed=seed,
        current=current,
        progress=None if progress is None else report,
        group=group,
        timeout_s=timeout_s,
    )
    layout = order_rows(found.instance, found.layout, rules.row_order)
    require_feasible(check(found.instance, layout), "the plan's layout")
    annealed = found.annealed
    return Plan(
        window_digest=window.digest,
        topology=topology,
        rules=rules,
        cost=cost,
        placement=found.placement,
        layout=layout,
        rows=rows,
        placement_bounds=peak_bounds(problems.placement) if problems.placement else (),
        layout_bounds=layout_bounds(found.instance),
        j_ticks=evaluate(found.instance, layout).j_ticks,
        unit_ticks=instance.unit_ticks,
        method=f"population annealing ({annealed.engine}, population"
        f" {annealed.population}), {found.num_placements} placements for its groups",
        seed=seed,
        termination=annealed.termination,
        versions=(("numpy", np.__version__), ("python", platform.python_version())),
    )


def choose_placement(
    problems: WindowProblems, current: Placement | None, seed: int
) -> Placement | None:
    """Return the placement for the window's aggregate demand; None without routes."""
    if problems.placement is None:
        return None
    return place(problems.placement, current=current, seed=seed)


def _start_layout(start: Plan, window: Window, instance: LayoutInstance) -> Layout:
    if start.window_digest != window.digest:
        raise MismatchError(
            f"the start is a plan of window {start.window_digest[:12]}…, not of"
            f" {window.digest[:12]}…; give a plan of this window"
        )
    require_feasible(check(instance, start.layout), "the start's layout")
    return start.layout
