"""What a placement would save: the expert time of the critical path under each.

Axis letters: L MoE layers, R rows, S shards.
"""

import numpy as np

from rpopt.layout.evaluate import evaluate
from rpopt.placement.hysteresis import FloatArray, Moves, choose_moves
from rpopt.plans import Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.window import Window


def worth_moving(
    window: Window,
    plan: Plan,
    current: Placement,
    *,
    step_s: float | None,
    cost_per_expert_s: float,
    life_steps: float,
) -> Moves:
    """Return which layers of a plan's placement pay for their move.

    The saving of a layer is its share of the critical path under the current placement
    less that under the plan's, for the plan's layout, in units of the measured step.

    Parameters
    ----------
    window, plan, current
        The window, its plan with a placement, and the placement in force.
    step_s
        Measured seconds of a step; None before the first, when every saving pays.
    cost_per_expert_s
        Measured seconds to move one expert; 0 before the first move.
    life_steps
        Steps that a placement is expected to serve.
    """
    assert plan.placement is not None
    problems = WindowProblems(window, plan.topology, plan.rules, plan.cost)
    now_L, now_ticks = _critical_ticks(problems, plan, current)
    then_L, _ = _critical_ticks(problems, plan, plan.placement)
    seconds_per_tick_s = (1.0 if step_s is None else step_s) / now_ticks
    return choose_moves(
        current,
        plan.placement,
        saving_s_L=(now_L - then_L) * seconds_per_tick_s,
        cost_per_expert_s=0.0 if step_s is None else cost_per_expert_s,
        life_steps=life_steps,
    )


def _critical_ticks(
    problems: WindowProblems, plan: Plan, placement: Placement
) -> tuple[FloatArray, int]:
    """Return expert ticks on the critical path, [L], and J in ticks."""
    instance = problems.layout(placement, plan.layout.num_rows)
    cost = evaluate(instance, plan.layout)
    return cost.critical(cost.expert_ticks_RSL).sum(axis=0).astype(np.float64), (
        cost.j_ticks
    )
