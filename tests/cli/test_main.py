"""The command line as a whole: help, usage errors, streams and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Run, refused

COMMANDS = ("window", "plan", "compare", "certify", "verify", "show")


def test_help_names_every_command(run: Run) -> None:
    answer = run("--help")
    assert answer.code == 0
    assert all(command in answer.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    answer = run(command, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"usage: rpopt {command}")


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("fly",),
        ("window",),
        ("show",),
        ("verify", "w.npz"),
        ("certify", "rows", "w.npz"),
        ("certify", "cells", "w.npz", "--time-limit=1"),
        ("plan", "w.npz", "--seed=0"),
        ("plan", "w.npz", "--out-dir=out"),
        ("plan", "w.npz", "--out-dir=out", "--seed=x"),
        ("plan", "w.npz", "--out-dir=out", "--seed=0", "--coupling=never"),
        ("window", "generate", "--out=w.npz"),
        ("window", "from-routes", "r.npz", "--out=w.npz", "--experts=4"),
    ],
)
def test_usage_errors(run: Run, argv: tuple[str, ...]) -> None:
    answer = run(*argv)
    assert answer.code == 2
    assert answer.out == ""
    assert "usage: rpopt" in answer.err


def test_the_module_runs_without_torch(window_file: Path, plan_file: Path) -> None:
    """Verifying loads neither torch nor a solver; the answer is alone on stdout."""
    script = (
        "import sys; from rpopt.cli import main;"
        f"code = main(['verify', {str(window_file)!r}, {str(plan_file)!r}, '--json']);"
        "assert not {'torch', 'highspy', 'pyomo', 'numba'} & set(sys.modules);"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["verified"] is True


def test_files_that_are_not_there(run: Run, tmp_path: Path, plan_file: Path) -> None:
    missing = tmp_path / "missing.npz"
    for argv in (
        ("show", missing),
        ("verify", missing, plan_file),
        ("compare", missing, plan_file),
    ):
        refused(run(*argv), str(missing), "no such file")


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    window = tmp_path / "w.npz"
    run = [sys.executable, "-m", "rpopt.cli"]
    size = ["--samples", "8", "--layers", "2000", "--experts", "4", "--top-k", "1"]
    generate = ["window", "generate", "--seed", "0", "--out", str(window), *size]
    subprocess.run([*run, *generate], check=True, stdout=subprocess.DEVNULL)
    pipe = [*run, "show", str(window)]
    show = subprocess.Popen(pipe, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert show.stdout is not None
    assert show.stderr is not None
    show.stdout.readline()
    show.stdout.close()
    assert show.stderr.read() == b""
    assert show.wait() == 0
