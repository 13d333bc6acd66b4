"""The planner beside a trainer: plan while other work runs, move what pays, measure.

`submit` at the end of rollout starts planning on a thread; `collect`, before training,
waits for what is left of it and moves the experts. Both are called by all DP ranks.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rpopt.cost import CostModel
from rpopt.errors import InstanceError
from rpopt.online.collective import Job, collective_plan
from rpopt.online.deal import deal
from rpopt.online.materialise import MoveReport, materialise
from rpopt.online.messages import Deadline, Group, gather_json, own_group
from rpopt.online.rank_plan import RankPlan
from rpopt.online.registration import ExpertRegistry
from rpopt.online.samples import LocalSamples
from rpopt.online.saving import worth_moving
from rpopt.placement.hysteresis import Moves
from rpopt.rules import PackingRules
from rpopt.stop import StopCriterion
from rpopt.topology import Topology

_log = logging.getLogger(__name__)
_S = TypeVar("_S")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A plan in force, and what it took.

    Parameters
    ----------
    plan
        This rank's part; its placement is the one now in force.
    moves
        Which layers were worth moving; None for a baseline or without routes.
    move
        What moving took; None when nothing moved.
    planning_s, waited_s
        Seconds from submission to the finished plan, and how many of them the trainer
        waited in `collect`.
    """

    plan: RankPlan
    moves: Moves | None
    move: MoveReport | None
    planning_s: float
    waited_s: float

    @property
    def hidden_s(self) -> float:
        """Planning time that ran beside other work."""
        return max(0.0, self.planning_s - self.waited_s)

    @property
    def churn(self) -> float:
        """Share of all experts that changed their EP rank."""
        return 0.0 if self.moves is None else self.moves.churn


class OnlinePlanner:
    """Plans every window of a trainer on all DP ranks.

    Parameters
    ----------
    registry
        The experts of this rank; its placement is the one in force.
    topology, rules, cost, seed
        As in `rpopt.plan`.
    group
        The DP ranks in the order of the topology; None is the default group.
    ep_group
        The EP group of this rank, as in `materialise`.
    stop
        When the search ends. It runs beside other work, so seconds are fine.
    timeout_s
        Limit of each wait for other ranks.
    memory_limit_bytes
        Memory for moving experts; see `materialise`.
    life_steps
        Steps that a placement is expected to serve: a layer moves only if what it
        saves in them pays for the move.
    """

    def __init__(
        self,
        registry: ExpertRegistry,
        topology: Topology,
        rules: PackingRules,
        cost: CostModel,
        *,
        group: Group,
        ep_group: Group,
        stop: StopCriterion,
        seed: int = 0,
        timeout_s: float = 60.0,
        memory_limit_bytes: int = 2**28,
        life_steps: float = 1.0,
    ) -> None:
        self._registry, self._ep_group = registry, ep_group
        self._topology, self._rules, self._cost = topology, rules, cost
        self._stop, self._seed, self._timeout_s = stop, seed, timeout_s
        self._memory_limit_bytes, self._life_steps = memory_limit_bytes, life_steps
        self._talk = own_group(group, timeout_s)
        self._search_group = own_group(group, timeout_s)
        self._retired: list[Any] = []  # a new group would meet at a freed one's address
        self._task: _Task | None = None
        self._step_s: float | None = None
        self._cost_per_expert_s = 0.0

    def submit(self, samples: LocalSamples) -> None:
        """Start to plan the window that all ranks bring together.

        Raises
        ------
        InstanceError
            When the previous window has not been collected.
        """
        if self._task is not None:
            raise InstanceError("a window is being planned; call collect first")
        job = Job(
            topology=self._topology,
            rules=self._rules,
            cost=self._cost,
            seed=self._seed,
            current=self._registry.placement,
        )
        self._task = _Task(
            lambda: collective_plan(
                samples,
                job,
                stop=self._stop,
                group=self._talk,
                search_group=self._search_group,
                timeout_s=self._timeout_s,
            )
        )

    def collect(self) -> PlannedStep:
        """Wait for the plan, move the experts that pay for it, return this rank's part.

        Call it at the optimizer-step boundary, with no micro-batch in flight.

        Raises
        ------
        InstanceError
            When nothing was submitted.
        CommunicationError
            When a rank was lost while planning or moving.
        """
        if self._task is None:
            raise InstanceError("no window is being planned; call submit first")
        task, self._task = self._task, None
        called_s = time.perf_counter()
        found = task.result()
        waited_s = time.perf_counter() - called_s
        if found.is_baseline:  # a search given up may still use the old group
            self._retired.append(self._search_group)
            self._search_group = own_group(self._talk, self._timeout_s)
        moves = self._choose(found)
        move = None if moves is None else self._move(moves)
        return PlannedStep(
            plan=replace(found, placement=self._registry.placement),
            moves=moves,
            move=move,
            planning_s=task.seconds_s,
            waited_s=waited_s,
        )

    def deal(self, plan: RankPlan, own: Sequence[_S]) -> list[list[_S]]:
        """Return the samples of each cell of this rank; see `rpopt.online.deal`."""
        return deal(plan, own, group=self._talk, timeout_s=self._timeout_s)

    def observe_step(self, seconds_s: float) -> None:
        """Tell how long a training step took; savings are measured in it."""
        self._step_s = seconds_s

    def _choose(self, found: RankPlan) -> Moves | None:
        """Return which layers move: the same on all ranks, by the slowest's numbers."""
        if found.plan is None or found.plan.placement is None:
            return None
        deadline = Deadline(self._timeout_s)
        mine = [self._step_s, self._cost_per_expert_s]
        measured = gather_json(mine, group=self._talk, deadline=deadline)
        steps = [step_s for step_s, _ in measured]
        return worth_moving(
            found.window,
            found.plan,
            self._registry.placement,
            step_s=None if None in steps else max(steps),
            cost_per_expert_s=max(cost_s for _, cost_s in measured),
            life_steps=self._life_steps,
        )

    def _move(self, moves: Moves) -> MoveReport | None:
        num_experts = int(moves.num_experts_L.sum())
        if not num_experts:
            return None
        report = materialise(
            self._registry,
            moves.placement,
            group=self._ep_group,
            memory_limit_bytes=self._memory_limit_bytes,
            timeout_s=self._timeout_s,
        )
        self._cost_per_expert_s = report.seconds_s / num_experts
        _log.info(
            "moved %d experts of %d layers in %.3f s (churn %.1f %%)",
            num_experts,
            int(moves.moves_L.sum()),
            report.seconds_s,
            100 * moves.churn,
        )
        return report


class _Task:
    """One window being planned on a thread."""

    def __init__(self, work: Callable[[], RankPlan]) -> None:
        self._work = work
        self._found: RankPlan | None = None
        self._error: BaseException | None = None
        self.seconds_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="rpopt")
        self._thread.start()

    def result(self) -> RankPlan:
        """Wait and return the plan; every wait inside it is bounded."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def _run(self) -> None:
        started_s = time.perf_counter()
        try:
            self._found = self._work()
        except BaseException as error:  # raised again by `result`
            self._error = error
        self.seconds_s = time.perf_counter() - started_s
