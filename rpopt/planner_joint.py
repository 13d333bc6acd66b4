"""Joint refinement: placement given the layout's groups, layout given the placement.

Annealing tunes a layout to its placement; then the placement can be tuned to the groups
of that layout, and so on. Each step keeps the best plan so far, so that no alternation
makes it worse. The last step is a placement: it is short, and its gain is not lost
again.

J is a maximum over shards, so a placement for all groups alike improves shards that
nobody waits for. Groups are therefore weighted: those of the slowest shard most, those
close to it in proportion. The weights of all rounds add up (fictitious play), as shards
take turns in being the slowest. The next annealing starts from the last round's
placement even where J did not fall: with all shards better, it finds its way down.

Axis letters: G groups, R rows, S shards.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rpopt.anneal import AnnealResult, HistoryPoint, anneal
from rpopt.anneal.placement import place_window
from rpopt.anneal.run import LostProcessError
from rpopt.anneal.schedule import Limits
from rpopt.counter import key
from rpopt.layout.bounds import layout_bounds
from rpopt.layout.evaluate import LayoutCost, evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.placement.search import relabel
from rpopt.plans import Layout, Placement
from rpopt.problems import WindowProblems
from rpopt.records import Int64Array
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion

_log = logging.getLogger(__name__)
_ROUNDS = 3  # placements per step
_NEAR = 200  # shards within J = 1 divided by this of the slowest have a weight
_MOST_WEIGHT = 64
_FIRST_SHARE = 3  # one part in so many of the budget comes before the first placement
_PAYS = 4  # a placement pays if it gains one part in so many of what annealing gained
_MOST_ALTERNATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternation:
    """One step of the refinement: J after it, in ticks, and when it ended.

    Parameters
    ----------
    kind
        "layout" or "placement".
    seconds_s
        Since the start.
    best_ticks
        The lowest J so far; it never rises.
    """

    kind: str
    seconds_s: float
    best_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """A placement and a layout that fit each other, and how they were found.

    Parameters
    ----------
    placement, instance, layout
        The best of all steps; the instance is the layout problem of the placement.
    j_ticks
        J of the layout.
    steps
        What was gained when.
    annealed
        The last annealing: engine, population, termination.
    """

    placement: Placement | None
    instance: LayoutInstance
    layout: Layout
    j_ticks: int
    steps: tuple[Alternation, ...]
    annealed: AnnealResult

    @property
    def num_placements(self) -> int:
        """How often a placement step lowered J."""
        before = [self.steps[0].best_ticks, *(s.best_ticks for s in self.steps)]
        return sum(
            step.kind == "placement" and step.best_ticks < ticks
            for step, ticks in zip(self.steps, before, strict=False)
        )


def refine(
    problems: WindowProblems,
    placement: Placement | None,
    instance: LayoutInstance,
    *,
    starts: Sequence[Layout],
    stop: StopCriterion,
    seed: int,
    current: Placement | None = None,
    progress: Callable[[HistoryPoint], None] | None = None,
    group: Any = None,
    timeout_s: float = 60.0,
) -> Joint:
    """Anneal the layout and tune the placement in turn, within one budget.

    A third of the budget is annealed before the first placement. Then measured gains
    decide: where the placement gained little beside the annealing, one more annealing
    gets all that is left, otherwise half of it. A placement step takes tenths of a
    second; once its length is known it is kept free for the last one. Under a limit of
    sweeps the result depends on the arguments alone.

    Parameters
    ----------
    problems
        The window and its settings.
    placement, instance
        Where to start; None for a window with lengths only, which is only annealed.
    starts
        Layouts to start from.
    stop
        When to end. A criterion that names no limit of time or sweeps cannot be shared
        out: then one annealing takes it all and one placement follows.
    seed
        Any whole number.
    current
        The placement now in force: EP ranks are numbered so that few experts move.
    progress
        Called with each new best.
    group, timeout_s
        Processes that share the annealing; see `rpopt.anneal.anneal`. The budget is
        shared out by the first one's clock. When one is lost, the others end with the
        best that they hold.
    """
    search = _Search(problems, placement, instance, starts, seed, current, progress)
    search.anneal(MaxSweeps(0))  # loads the engine before the clock starts
    placeable = placement is not None
    if group is None:
        _alternate(search, _Budget(stop, time.monotonic), placeable)
        return search.result()
    from rpopt.anneal.distributed import Team, first_process_clock

    team = None
    try:
        team = Team(group, timeout_s)
        search.share(group, timeout_s)
        _alternate(search, _Budget(stop, first_process_clock(team)), placeable)
    except LostProcessError as lost:
        _log.warning("planning lost a process and keeps the best plan here: %s", lost)
        if team is not None:
            team.give_up()
    return search.result()


def _alternate(search: "_Search", budget: "_Budget", placeable: bool) -> None:
    """Spend the budget on layouts and placements in turn."""
    alternate = placeable and not budget.empty
    divisor = _FIRST_SHARE if alternate and budget.limited else 1
    budget.reset()
    search.began_s = time.monotonic()
    for number in range(_MOST_ALTERNATIONS):
        if number == _MOST_ALTERNATIONS - 1:
            divisor = 1
        gained = search.anneal(budget.stage(divisor, search.placement_s))
        if search.annealed.termination == "process lost":
            break
        budget.sweeps += search.annealed.sweeps
        began_s = budget.clock()
        placed = search.place() if alternate else 0
        search.placement_s = budget.clock() - began_s
        if divisor == 1 or (not placed and search.annealed.termination == "bound met"):
            break
        divisor = 2 if placed * _PAYS >= gained else 1


class _Search:
    """The plan from which the next step starts, and the best of all."""

    def __init__(
        self,
        problems: WindowProblems,
        placement: Placement | None,
        instance: LayoutInstance,
        starts: Sequence[Layout],
        seed: int,
        current: Placement | None,
        progress: Callable[[HistoryPoint], None] | None,
    ) -> None:
        self._problems, self._seed, self._current = problems, seed, current
        self._starts, self._progress = list(starts), progress
        self._placement, self._instance = placement, instance
        self._layouts: Sequence[Layout] = starts
        ticks, number = min(
            (evaluate(instance, start).j_ticks, n) for n, start in enumerate(starts)
        )
        self._best = (placement, instance, starts[number])
        self._best_ticks = ticks
        self._steps: list[Alternation] = []
        self._stage = 0
        self._group: Any = None
        self._timeout_s = 60.0
        self.annealed: AnnealResult
        self.placement_s = 0.0
        self.began_s = time.monotonic()

    def share(self, group: Any, timeout_s: float) -> None:
        """Anneal together with the other processes of a group from here on."""
        self._group, self._timeout_s = group, timeout_s

    def anneal(self, stop: StopCriterion) -> int:
        """Anneal under the placement at hand; return by how much the best J fell."""
        offset_s = time.monotonic() - self.began_s

        def report(point: HistoryPoint) -> None:
            if self._progress is not None and point.best_ticks <= self._best_ticks:
                self._progress(replace(point, seconds_s=offset_s + point.seconds_s))

        before, instance = self._best_ticks, self._instance
        self.annealed = anneal(
            instance,
            starts=self._layouts,
            stop=stop,
            seed=key(self._seed, self._stage) if self._stage else self._seed,
            bound_ticks=max(bound.value for bound in layout_bounds(instance)),
            progress=report,
            group=self._group,
            timeout_s=self._timeout_s,
        )
        self._keep(self._placement, instance, self.annealed.best, self.annealed.j_ticks)
        self._layouts = [self._best[2]]
        if self.annealed.sweeps:
            self._stage += 1
        self._note("layout")
        return before - self._best_ticks

    def place(self) -> int:
        """Tune the placement to the best layout; return by how much the best J fell."""
        before = self._best_ticks
        placement, instance, layout = self._best
        assert placement is not None
        groups = self._problems.groups(layout)
        weight_G = np.zeros(groups.num_groups, dtype=np.int64)
        cost = evaluate(instance, layout)
        for number in range(_ROUNDS):
            weight_G += group_weights(instance, cost)
            placement = place_window(
                replace(groups, weight_G=weight_G),
                starts=[placement],
                seed=key(self._seed, self._stage, number),
            )
            if self._current is not None:
                placement = relabel(placement, self._current)
            instance = self._problems.layout(placement, layout.num_rows)
            cost = evaluate(instance, layout)
            self._keep(placement, instance, layout, cost.j_ticks)
        self._placement, self._instance = placement, instance
        if self._best_ticks < before and self._progress is not None:
            self._progress(self._point())
        self._note("placement")
        return before - self._best_ticks

    def result(self) -> Joint:
        """Return the best, or a start that is better under the same placement."""
        placement, instance, _ = self._best
        for start in self._starts:
            self._keep(placement, instance, start, evaluate(instance, start).j_ticks)
        return Joint(
            placement=placement,
            instance=instance,
            layout=self._best[2],
            j_ticks=self._best_ticks,
            steps=tuple(self._steps),
            annealed=self.annealed,
        )

    def _keep(
        self,
        placement: Placement | None,
        instance: LayoutInstance,
        layout: Layout,
        ticks: int,
    ) -> None:
        if ticks < self._best_ticks:
            self._best_ticks, self._best = ticks, (placement, instance, layout)

    def _point(self) -> HistoryPoint:
        return HistoryPoint(
            seconds_s=time.monotonic() - self.began_s,
            sweeps=self.annealed.sweeps,
            best_ticks=self._best_ticks,
        )

    def _note(self, kind: str) -> None:
        point = self._point()
        self._steps.append(
            Alternation(
                kind=kind, seconds_s=point.seconds_s, best_ticks=point.best_ticks
            )
        )


def group_weights(instance: LayoutInstance, cost: LayoutCost) -> Int64Array:
    """Return 1 to `_MOST_WEIGHT` for each group: the closer to the slowest, the more.

    A shard is compared with the slowest of the step; where rows are coupled, a group is
    compared with the slowest of its row.
    """
    group_RS, near = cost.group_ticks_RS, instance.unit_ticks // _NEAR
    if instance.coupling == "step":
        group_RS = np.broadcast_to(cost.shard_ticks_S, group_RS.shape)
    else:
        near //= instance.num_rows
    near = max(1, near)
    slack_RS = group_RS.max(axis=1, keepdims=True) - group_RS
    weight_RS = 1 + (_MOST_WEIGHT - 1) * np.maximum(0, near - slack_RS) // near
    weight_G: Int64Array = weight_RS.ravel()
    return weight_G


@dataclass(slots=True)
class _Budget:
    """What is left of the caller's stop criterion, in shares."""

    stop: StopCriterion
    clock: Callable[[], float]
    sweeps: int = 0
    _limits: Limits = field(init=False)
    _began_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._limits = Limits.of(self.stop)

    def reset(self) -> None:
        self.stop.reset()
        self._began_s = self.clock()

    @property
    def limited(self) -> bool:
        """Whether the criterion names a limit that can be shared out."""
        return self._limits.seconds_s is not None or self._limits.sweeps is not None

    @property
    def empty(self) -> bool:
        """Whether nothing may be done at all."""
        return 0 in (self._limits.seconds_s, self._limits.sweeps)

    def stage(self, divisor: int, reserve_s: float) -> StopCriterion:
        """Return the criterion of a stage: one part in `divisor` of what is left."""
        criteria: list[StopCriterion] = [_Rest(self.stop, self.sweeps)]
        if self._limits.sweeps is not None:
            left = max(0, self._limits.sweeps - self.sweeps)
            criteria.append(MaxSweeps(left // divisor))
        if self._limits.seconds_s is not None:
            spent_s = self.clock() - self._began_s
            left_s = max(0.0, self._limits.seconds_s - spent_s - reserve_s)
            criteria.append(MaxRuntime(left_s / divisor))
        return FirstOf(criteria)


@dataclass(slots=True)
class _Rest:
    """The caller's criterion, its clock and sweeps going on from stage to stage."""

    stop: StopCriterion
    sweeps: int

    def reset(self) -> None:
        """Forget nothing: the clock goes on."""

    def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
        """Return whether to stop after these sweeps and the ones before."""
        return self.stop(sweeps=self.sweeps + sweeps, best=best, bound=bound)
