"""The README's examples run as they are written."""

import re
import shlex
from pathlib import Path

import pytest

from rpopt.cli import main

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_python_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "rows: " in printed
    assert "closed" in printed
    assert "rpopt plan" in printed
    assert isinstance(names["micro_batches"], list)


def test_the_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.replace("\\\n", " ")
    commands = re.findall(r"^    (rpopt .*)$", text, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        quick = re.sub(r"--(max-runtime|time-limit) \d+", r"--\1 1", command)
        assert main(shlex.split(quick, comments=True)[1:]) == 0, command
    capsys.readouterr()
