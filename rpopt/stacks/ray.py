"""Planning where Ray drivers live: as a task, or in an actor that remembers.

The drivers of verl, slime and others are Ray actors themselves; planning elsewhere
leaves them free while generation still runs.
"""

from dataclasses import replace
from typing import Any

from rpopt.plans import Plan
from rpopt.rules import PackingRules
from rpopt.stacks.settings import Cells, StackSettings, plan_cells
from rpopt.window import Window


def submit_plan(window: Window, rules: PackingRules, settings: StackSettings) -> Any:
    """Start planning as a Ray task; `ray.get` gives the plan and its cells."""
    import ray

    return ray.remote(plan_cells).remote(window, rules, settings)


class Planner:
    """Plans window after window, each from the placement before.

    Make an actor of it with `ray.remote(Planner).remote(settings)`.
    """

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings

    def plan(self, window: Window, rules: PackingRules) -> tuple[Plan, Cells]:
        """Return the plan and its cells; its placement is in force from now on."""
        found, cells = plan_cells(window, rules, self.settings)
        if found.placement is not None:
            self.settings = replace(self.settings, current=found.placement)
        return found, cells
