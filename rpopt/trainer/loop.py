"""The loop: roll out, plan beside it, move experts, train.

    rollouts -> submit -> score -> collect (move experts) -> deal -> train

All ranks run it alike; the planner's part is in `submit`, `collect` and `deal`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path

import torch
from tqdm import tqdm

from rpopt.cost import CostModel
from rpopt.errors import InstanceError
from rpopt.online.background import OnlinePlanner, PlannedStep
from rpopt.online.checkpoint import Checkpoints
from rpopt.online.registration import ExpertRegistry
from rpopt.presets import GroupedAttention, cost_model
from rpopt.presets import ModelShape as CostShape
from rpopt.rules import PackingRules
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps
from rpopt.trainer.config import Config
from rpopt.trainer.metrics import MetricLog, Metrics, load_ratio
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import Parallel
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.step import Cell, StepReport, filler, train_step
from rpopt.trainer.windows import OwnRollouts, RecordedRoutes, Windows, histograms


class Trainer:
    """A model, what updates it, and what plans for it, on one rank.

    Parameters
    ----------
    config
        The run.
    groups
        The other ranks; torch.distributed is set up.
    device
        Where the model is.
    """

    def __init__(
        self, config: Config, groups: Parallel, device: torch.device | str = "cpu"
    ) -> None:
        self.config, self.groups = config, groups
        shape = config.model
        self.registry = ExpertRegistry(
            n_layers=shape.num_moe_layers,
            n_experts=shape.num_experts,
            ep_size=config.ep,
            ep_rank=groups.ep_rank,
        )
        self.model = Model(
            shape, self.registry, seed=config.seed, group=groups.ep_group
        ).to(device)
        for layer, moe in enumerate(self.model.moe_layers):
            for name, parameter in moe.experts.named_parameters():
                self.registry.add_fused(layer, name, parameter)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.training.learning_rate,
            weight_decay=config.training.weight_decay,
        )
        self.registry.add_optimizer(self.optimizer)
        self.planner = _planner(config, groups, self.registry)
        self.windows = _windows(config, groups, self.model)

    def run(self, folder: Path, *, resume: bool = False) -> None:
        """Train all windows; the first rank writes metrics into the folder.

        Parameters
        ----------
        folder
            Of the run: metrics and checkpoints.
        resume
            Go on after the last checkpoint in the folder.

        Raises
        ------
        InstanceError
            When a new run finds the checkpoints of another.
        CheckpointError
            When there is nothing to resume, or it is damaged.
        """
        config, is_first = self.config, self.groups.rank == 0
        saved = Checkpoints(
            folder / "checkpoints", self.registry, self.model, group=None
        )
        if saved.steps and not resume:
            raise InstanceError(
                f"{folder} holds the checkpoints of a run; resume it with --resume, or"
                " give another folder"
            )
        first = saved.load().step if resume else 0
        log = None
        if is_first:
            board = config.tensorboard
            log = MetricLog(folder, first_step=first, tensorboard=board)
        with log or nullcontext():
            steps = range(first, config.steps)
            for step in tqdm(steps, desc="windows", disable=not is_first):
                metrics = self.step(step)
                if log is not None:
                    log.write(metrics)
                if config.checkpoint_every and is_due(step, config):
                    saved.save(step + 1)

    def step(self, step: int) -> Metrics:
        """Train one window and return its metrics."""
        clock = _Clock()
        with clock.lap("rollout_s"):
            rollouts = self.windows.rollouts(step)
        with clock.lap("score_s"):
            self.planner.submit(histograms(rollouts, self.config.model))
            scored = self.windows.scored(rollouts)
        with clock.lap("collect_s"):
            planned = self.planner.collect()
        with clock.lap("deal_s"):
            dealt = self.planner.deal(planned.plan, scored.samples)
        with clock.lap("train_s"):
            report = self._train([cell or [filler(self.model.shape)] for cell in dealt])
        self.planner.observe_step(clock.seconds["train_s"])
        return {
            "step": step,
            "reward": scored.reward,
            **_of_report(report, self.registry),
            **_of_plan(planned),
            **clock.seconds,
            "tokens_per_s": report.num_tokens / clock.seconds["train_s"],
        }

    def _train(self, cells: Sequence[Cell]) -> StepReport:
        """Step the optimizer on a window as often as it asks for."""
        training = self.config.training
        cells = self.windows.prepared(cells)
        reports = [
            train_step(
                self.model,
                self.registry,
                self.optimizer,
                cells,
                self.groups,
                objective=self.windows.objective,
                aux_weight=training.aux_weight,
                max_norm=training.max_norm,
            )
            for _ in range(self.windows.passes)
        ]
        return reports[0]


def is_due(step: int, config: Config) -> bool:
    """Return whether a checkpoint follows a window: every so often, and at the end."""
    done = step + 1
    return done == config.steps or done % config.checkpoint_every == 0


def cost_of(shape: ModelShape) -> CostModel:
    """Return the planner's cost model of a model: FLOPs, as of the presets."""
    attention = GroupedAttention(
        num_layers=shape.num_layers,
        num_dense=shape.num_dense_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
    )
    return cost_model(
        CostShape(
            name="trainer",
            hidden=shape.hidden,
            attention=(attention,),
            num_experts=shape.num_experts,
            top_k=shape.top_k,
            moe_intermediate=shape.moe_intermediate,
            shared_intermediate=shape.shared_intermediate,
            dense_intermediate=shape.dense_intermediate,
        )
    )


def _planner(
    config: Config, groups: Parallel, registry: ExpertRegistry
) -> OnlinePlanner:
    planning = config.planning
    return OnlinePlanner(
        registry,
        groups.topology,
        PackingRules(token_cap=planning.token_cap, dummies=True),
        cost_of(config.model),
        group=None,
        ep_group=groups.ep_group,
        stop=FirstOf([MaxSweeps(planning.sweeps), MaxRuntime(planning.budget_s)]),
        seed=config.seed,
        timeout_s=planning.timeout_s,
        memory_limit_bytes=planning.memory_limit_mib * 2**20,
        life_steps=planning.life_steps,
    )


def _windows(config: Config, groups: Parallel, model: Model) -> Windows:
    if config.grpo is not None:
        return OwnRollouts(config.grpo, model, groups, config.seed)
    assert config.replay is not None
    return RecordedRoutes(config.replay, config.model, groups, config.seed)


def _of_report(report: StepReport, registry: ExpertRegistry) -> Metrics:
    return {
        "loss": report.loss,
        "gradient_norm": report.gradient_norm,
        "tokens": report.num_tokens,
        "load_max_over_mean": load_ratio(report.load_LE, registry.placement),
    }


def _of_plan(planned: PlannedStep) -> Metrics:
    """Return what planning found and took; J is that of the plan as proposed."""
    plan = planned.plan.plan
    metrics: Metrics = {
        "is_baseline": planned.plan.is_baseline,
        "rows": len(planned.plan.cells),
        "j": None,
        "j_bound": None,
        "churn": planned.churn,
        "planning_s": planned.planning_s,
        "hidden_s": planned.hidden_s,
        "move_s": 0.0 if planned.move is None else planned.move.seconds_s,
    }
    if plan is not None:
        metrics["j"] = plan.j
        metrics["j_bound"] = float(Fraction(plan.lower_ticks, plan.unit_ticks))
    return metrics


class _Clock:
    """Seconds of the named parts of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def lap(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began_s
