from pathlib import Path

import pytest

from rpopt.errors import FileFormatError, InstanceError, RpoptError
from rpopt.trainer.config import load_config
from rpopt.trainer.task import DigitTask
from tests.trainer.cases import RUN


def load(tmp_path: Path, text: str):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_config(path)


def test_a_run_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, RUN)
    assert config.grpo.task == DigitTask(
        kind="copy", base=4, min_digits=1, max_digits=3
    )
    assert config.longest_sample == 8
    assert config.replay is None
    assert config.training.max_norm == 1.0


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        ("sweeps = 2", "sweep = 2", FileFormatError, "keys here are token_cap, sweeps"),
        ("steps = 3", "", FileFormatError, "steps is missing"),
        ('"copy"', '"add"', FileFormatError, "'copy', 'reverse', 'sort'"),
        ("token_cap = 32", "token_cap = 7", InstanceError, "may have 8 tokens"),
        ("base = 4", "base = 5", InstanceError, "vocab_size = 6"),
        ("answers = 4", "answers = 1", InstanceError, "answers"),
        ("steps = 3", "steps = 0", InstanceError, "steps"),
        (
            "[grpo]",
            '[replay]\nroutes = "x"\nsamples = 1\nmax_length = 9\n[grpo]',
            InstanceError,
            "give one of",
        ),
    ],
)
def test_mistakes_are_refused(
    tmp_path: Path, old: str, new: str, kind: type[RpoptError], message: str
) -> None:
    assert old in RUN
    with pytest.raises(kind, match=message):
        load(tmp_path, RUN.replace(old, new))
