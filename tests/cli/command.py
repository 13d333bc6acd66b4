"""Run commands, and make the files that they read."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpopt.cli import main
from rpopt.io import write_npz
from rpopt.records import canonical_json, content_digest
from rpopt.window import Window
from tests.cases import medium_case

SETTINGS = (
    "--dp=4",
    "--ep=2",
    "--token-cap=128",
    "--pad-multiple=4",
    "--c1=1",
    "--c2=1/32",
    "--omega=1/2",
)
"""The settings of `medium_case`."""


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `rpopt` in this process."""

    def run(*argv: object) -> Answer:
        capsys.readouterr()
        try:
            code = main([str(arg) for arg in argv])
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return run


def refused(answer: Answer, *words: str) -> None:
    """A usage error: exit code 2, one line on stderr that says these words."""
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("rpopt: error: ")
    assert answer.err.count("\n") == 1
    for word in words:
        assert word in answer.err, answer.err


def save(path: Path, window: Window) -> Path:
    write_npz(path, window)
    return path


def forge(path: Path, **changes: Any) -> Path:
    """A window file with changed arrays and the digest that goes with them."""
    window = medium_case().window
    arrays = window.arrays() | {k: np.asarray(v) for k, v in changes.items()}
    values = window.values()
    header = {
        "schema": window.SCHEMA,
        "digest": content_digest(window.SCHEMA, values, arrays),
        "origin": values.pop("origin"),
        "values": values,
    }
    np.savez(path, header=np.array(canonical_json(header)), **arrays)
    return path


def with_length(sample: int, length: Any) -> Any:
    """The lengths of the window, one of them changed."""
    lengths = medium_case().window.length_N.tolist()
    lengths[sample] = length
    return lengths


def shorter(num_samples: int) -> Window:
    """The first samples of the window."""
    window = medium_case().window
    assert window.demand_NLE is not None
    return replace(
        window,
        length_N=window.length_N[:num_samples],
        routed_tokens_N=window.routed_N[:num_samples],
        demand_NLE=window.demand_NLE[:num_samples],
    )
