"""The loop on real processes: what is rolled out is what is trained."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from rpopt.trainer.config import load_config
from rpopt.trainer.loop import Trainer
from rpopt.trainer.metrics import Metrics
from rpopt.trainer.parallel import parallel
from rpopt.trainer.rollout import Rollout
from tests.distributed.ranks import results_of
from tests.trainer.cases import RUN

pytestmark = pytest.mark.dist
Seen = list[tuple[bytes, bytes]]


def build(path: str) -> Trainer:
    config = load_config(Path(path))
    return Trainer(config, parallel(config.ep))


def config_file(tmp_path: Path, **changes: Any) -> str:
    text = RUN
    for name, value in changes.items():
        lines = [line for line in text.splitlines() if line.startswith(f"{name} = ")]
        text = text.replace(lines[0], f"{name} = {value}")
    path = tmp_path / "run.toml"
    path.write_text(text)
    return str(path)


def train(path: str) -> list[Metrics]:
    trainer = build(path)
    return [trainer.step(step) for step in range(trainer.config.steps)]


def watch(path: str) -> list[tuple[Seen, Seen]]:
    """Per window: (tokens, routes) of this rank's rollouts, and of what it trained.

    Recorded routes are shifted by one expert, so that live ones would be others.
    """
    trainer = build(path)
    recorded: Seen = []
    used: Seen = []
    roll = trainer.windows.rollouts

    def shifted(step: int) -> list[Rollout]:
        rollouts = [
            Rollout(
                tokens=r.tokens,
                prompt_tokens=r.prompt_tokens,
                routes_TLK=(r.routes_TLK + 1) % 4,
            )
            for r in roll(step)
        ]
        recorded.extend(
            (r.tokens[:-1].tobytes(), r.routes_TLK.astype(np.int64).tobytes())
            for r in rollouts
        )
        return rollouts

    visited: list[np.ndarray] = []

    def after_layer(module: Any, args: Any, output: Any) -> None:
        if args[1] is not None:  # replayed
            visited.append(output[1].expert_TK.numpy())

    def after_model(module: Any, args: Any, output: Any) -> None:
        if len(args) < 3:
            return
        tokens, context, _ = args
        ends = np.cumsum(context.lengths)[:-1]
        parts = np.split(np.stack(visited, axis=1), ends)
        visited.clear()
        for sample, routes in zip(np.split(tokens.numpy(), ends), parts, strict=True):
            used.append((sample.tobytes(), routes.tobytes()))

    trainer.windows.rollouts = shifted
    for moe in trainer.model.moe_layers:
        moe.register_forward_hook(after_layer)
    trainer.model.register_forward_hook(after_model)
    found = []
    for step in range(2):
        recorded.clear()
        used.clear()
        trainer.step(step)
        found.append((list(recorded), list(used)))
    return found


@pytest.mark.parametrize(("world", "ep"), [(2, 2), (4, 2)])
def test_recorded_routes_are_exactly_those_trained(
    tmp_path: Path, world: int, ep: int
) -> None:
    results = results_of(watch, world, config_file(tmp_path, ep=ep))
    for window in zip(*results, strict=True):
        recorded = Counter(pair for rank in window for pair in rank[0])
        used = Counter(pair for rank in window for pair in rank[1])
        assert recorded.total() == 12
        passes = 3  # old log-probabilities and two optimizer steps
        assert used == Counter({pair: passes * n for pair, n in recorded.items()})


@pytest.mark.parametrize(("world", "ep"), [(1, 1), (2, 1), (4, 2)])
def test_the_run_does_not_depend_on_the_number_of_ranks(
    tmp_path: Path, world: int, ep: int
) -> None:
    """Four ranks have three prompts, so that one rank decodes and trains nothing."""
    expected = results_of(train, 2, config_file(tmp_path))[0]
    found = results_of(train, world, config_file(tmp_path, ep=ep))
    for rank in found:
        for ours, theirs in zip(rank, expected, strict=True):
            for name in ("reward", "tokens"):
                assert ours[name] == theirs[name]
            for name in ("loss", "gradient_norm"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5)
            assert not ours["is_baseline"]
            assert 1 - 1e-9 <= ours["j_bound"] <= ours["j"]


def break_planning(path: str) -> list[Metrics]:
    trainer = build(path)
    if dist.get_rank() == 1:
        from rpopt.online import collective

        collective.plan = lambda *_, **__: 1 / 0  # type: ignore[assignment]
    return [trainer.step(0)]


def test_training_goes_on_when_planning_fails(tmp_path: Path) -> None:
    path = config_file(tmp_path, timeout_s=10)
    expected = results_of(train, 2, path)[0][0]
    for (metrics,) in results_of(break_planning, 2, path):
        assert metrics["is_baseline"]
        assert metrics["j"] is None
        assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-3, abs=1e-5)
