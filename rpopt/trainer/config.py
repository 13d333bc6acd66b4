"""What a training run is configured with; `rpopt.io.config` reads it from TOML."""

from dataclasses import dataclass
from pathlib import Path

from rpopt.errors import InstanceError
from rpopt.io.config import read_config
from rpopt.records import freeze, positive_int
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.task import DigitTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The optimizer (AdamW) and the loss.

    Parameters
    ----------
    learning_rate, weight_decay
        As in AdamW.
    max_norm
        Gradients are scaled down to this norm.
    aux_weight
        Weight of the load-balancing loss.
    """

    learning_rate: float
    weight_decay: float = 0.0
    max_norm: float = 1.0
    aux_weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """The planner; see `rpopt.online.background.OnlinePlanner`.

    Parameters
    ----------
    token_cap
        Tokens that one micro-batch of one rank may hold.
    sweeps, budget_s
        The search ends after so many sweeps, or so many seconds.
    life_steps
        Steps that a placement is expected to serve.
    timeout_s
        Limit of each wait for other ranks.
    memory_limit_mib
        Memory for moving experts.
    """

    token_cap: int
    sweeps: int = 20
    budget_s: float = 10.0
    life_steps: float = 10.0
    timeout_s: float = 60.0
    memory_limit_mib: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """Windows that the model writes itself.

    Parameters
    ----------
    task
        What it is asked.
    prompts, answers
        Prompts of a window, over all ranks, and answers to each.
    max_response
        Tokens after which an answer is cut off.
    temperature
        Of the sampling.
    clip, passes
        Clipping of the probability ratio, and optimizer steps on each window.
    """

    task: DigitTask
    prompts: int
    answers: int
    max_response: int
    temperature: float = 1.0
    clip: float = 0.2
    passes: int = 1

    def __post_init__(self) -> None:
        """Check the sizes."""
        minima = {"prompts": 1, "answers": 2, "max_response": 1, "passes": 1}
        for name, minimum in minima.items():
            value = positive_int(getattr(self, name), name=name, minimum=minimum)
            freeze(self, name, value)
        if self.temperature <= 0 or not 0 < self.clip < 1:
            raise InstanceError(
                f"temperature = {self.temperature} must be above 0 and clip ="
                f" {self.clip} between 0 and 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Windows of recorded routes, with random tokens.

    Parameters
    ----------
    routes
        A `.npz` file with `topk` [tokens, MoE layers, K] and the `offsets` of its
        generations; a relative path is within RPOPT_DATA.
    samples
        Samples of a window, over all ranks; each is one generation.
    max_length
        Tokens after which a generation is cut off.
    """

    routes: str
    samples: int
    max_length: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("samples", "max_length"):
            freeze(self, name, positive_int(getattr(self, name), name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A training run.

    Parameters
    ----------
    seed, steps
        Of everything random, and windows to train.
    ep
        Ranks that share the experts.
    model, training, planning
        The model, the optimizer and the planner.
    grpo, replay
        Where windows come from; one of them.
    checkpoint_every
        Windows between checkpoints, one at the end too; 0 for none.
    tensorboard
        Whether metrics go to TensorBoard too.

    Raises
    ------
    InstanceError
        When the parts do not fit each other.
    """

    seed: int
    steps: int
    ep: int
    model: ModelShape
    training: Training
    planning: Planning
    grpo: Grpo | None = None
    replay: Replay | None = None
    checkpoint_every: int = 0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Check that the parts fit each other."""
        for name, minimum in (("steps", 1), ("ep", 1), ("checkpoint_every", 0)):
            positive_int(getattr(self, name), name=name, minimum=minimum)
        if (self.grpo is None) == (self.replay is None):
            raise InstanceError(
                "give one of [grpo], windows that the model writes, and [replay],"
                " windows of recorded routes"
            )
        if self.grpo is not None and self.grpo.task.vocab_size > self.model.vocab_size:
            raise InstanceError(
                f"the task has {self.grpo.task.vocab_size} tokens, the model"
                f" vocab_size = {self.model.vocab_size}; raise it"
            )
        if self.longest_sample > self.planning.token_cap:
            raise InstanceError(
                f"samples may have {self.longest_sample} tokens, token_cap ="
                f" {self.planning.token_cap}; raise it or shorten the samples"
            )

    @property
    def longest_sample(self) -> int:
        """Tokens that a sample may have at most."""
        if self.grpo is not None:
            return self.grpo.task.max_prompt + self.grpo.max_response - 1
        assert self.replay is not None
        return self.replay.max_length


def load_config(path: Path) -> Config:
    """Read a run from a TOML file.

    Raises
    ------
    FileFormatError, InstanceError
        When a key is unknown, missing or of another type; when parts do not fit.
    """
    return read_config(path, Config)
