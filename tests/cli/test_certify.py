"""`rpopt certify` and the recheck of what it wrote."""

import contextlib
import json
import os
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rpopt.certificate import Certificate
from rpopt.io import read, write_json
from rpopt.plans import Plan
from tests.cases import make_plan, medium_case
from tests.cli.command import SETTINGS, Answer, Run, refused, save, shorter


def certify(run: Run, folder: Path, problem: str, *argv: object) -> Answer:
    """Certify without searching: bounds and heuristics only."""
    options = ("--time-limit=0", "--cert-dir", folder / "certs", "--json")
    return run("certify", problem, *argv, *options)


@pytest.mark.parametrize("problem", ["rows", "placement", "layout"])
def test_certificates_are_written_and_verify(
    run: Run, tmp_path: Path, window_file: Path, plan_file: Path, problem: str
) -> None:
    answer = certify(run, tmp_path, problem, window_file, "--plan", plan_file)
    assert answer.code == 0, answer.err
    (row,) = answer.json
    assert row["instance"] == "w"
    files = sorted((tmp_path / "certs").glob("*.cert.json"))
    assert len(files) == row["problems"] == (3 if problem == "placement" else 1)
    found = [read(file, Certificate) for file in files]
    assert row["lower"] == sum(c.lower for c in found)
    assert row["upper"] == sum(c.upper for c in found)
    instance = tmp_path / "certs" / f"w.{problem}.instance.npz"
    for file, certificate in zip(files, found, strict=True):
        verified = run("verify", instance, file, "--json")
        assert verified.code == 0, verified.err
        (line,) = verified.json
        assert line["upper"] == certificate.upper
        assert line["lower_arithmetic"] <= line["lower_claimed"]
        tampered = replace(certificate, upper=certificate.upper + 1)
        write_json(file, tampered)
        assert run("verify", instance, file).code == 1


def test_a_certified_layout_is_a_plan_to_start_from(
    run: Run, tmp_path: Path, window_file: Path, plan_file: Path
) -> None:
    certify(run, tmp_path, "layout", window_file, "--plan", plan_file)
    found = tmp_path / "certs" / "w.layout.plan.json"
    certificate = read(tmp_path / "certs" / "w.layout.cert.json", Certificate)
    assert read(found, Plan).j_ticks == certificate.upper
    assert run("verify", window_file, found).code == 0
    stop = (
        "--seed=0",
        "--max-sweeps=1",
        "--out-dir",
        tmp_path / "again",
        "--start",
        found,
    )
    answer = run("plan", window_file, *SETTINGS, *stop, "--json")
    assert answer.code == 0, answer.err
    again = read(tmp_path / "again" / "w.plan.json", Plan)
    assert again.j_ticks <= certificate.upper


def test_rows_from_settings_alone(run: Run, tmp_path: Path, window_file: Path) -> None:
    answer = certify(run, tmp_path, "rows", window_file, *SETTINGS)
    (row,) = answer.json
    plan = make_plan(medium_case())
    assert (row["lower"], row["upper"]) == (plan.rows.lower, plan.rows.upper)


def test_an_open_certificate_is_a_negative_answer_on_request(
    run: Run, tmp_path: Path, window_file: Path, plan_file: Path
) -> None:
    argv = ("layout", window_file, "--plan", plan_file, "--require-closed")
    answer = certify(run, tmp_path, *argv)
    assert answer.json[0]["closed"] == 0
    assert answer.code == 1
    rows = certify(run, tmp_path, "rows", window_file, *SETTINGS, "--require-closed")
    assert rows.code == 0


def test_certificates_belong_to_their_instance(
    run: Run, tmp_path: Path, window_file: Path, plan_file: Path
) -> None:
    assert certify(run, tmp_path, "rows", window_file, *SETTINGS).code == 0
    certify(run, tmp_path, "layout", window_file, "--plan", plan_file)
    folder = tmp_path / "certs"
    answer = run(
        "verify", folder / "w.layout.instance.npz", folder / "w.rows.cert.json"
    )
    assert answer.code == 1
    refused(run("verify", window_file, folder / "w.rows.cert.json"), "give a window")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("rows",), ("dp is missing",)),
        (("layout", *SETTINGS), ("w.npz: ", "give --plan")),
        (("rows", *SETTINGS, "--token-cap=20"), ("w.npz: ", "longer than token_cap")),
        (("placement", *SETTINGS, "--ep=3", "--dp=3"), ("w.npz: ", "8 experts")),
        (("rows", *SETTINGS, "--workers=0"), ("--workers 0",)),
        (("rows", *SETTINGS, "--time-limit=-1"), ("-1",)),
    ],
)
def test_bad_requests_are_refused(
    run: Run,
    tmp_path: Path,
    window_file: Path,
    argv: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    options = ("--cert-dir", tmp_path / "certs", "--time-limit=0")
    refused(run("certify", argv[0], window_file, *options, *argv[1:]), *words)
    assert not list(tmp_path.glob("certs/*"))


def test_lengths_only_have_no_placement_to_certify(run: Run, tmp_path: Path) -> None:
    path = save(tmp_path / "w.npz", medium_case(routes=False).window)
    answer = certify(run, tmp_path, "placement", path, *SETTINGS)
    refused(answer, str(path), "lengths only")


def test_certificates_never_overwrite_each_other(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    (tmp_path / "deep").mkdir()
    twin = save(tmp_path / "deep" / "w.npz", shorter(8))
    answer = certify(run, tmp_path, "rows", window_file, twin, *SETTINGS)
    refused(answer, "2 inputs are called 'w'", "certificates")


def test_plans_that_do_not_fit(
    run: Run, tmp_path: Path, window_file: Path, plan_file: Path
) -> None:
    other = save(tmp_path / "other.npz", medium_case(1).window)
    answer = certify(run, tmp_path, "rows", other, "--plan", plan_file)
    refused(answer, str(other), "give the window that was planned")
    both = certify(run, tmp_path, "rows", window_file, other, "--plan", plan_file)
    refused(both, "--plan belongs to one window; 2 windows")
    plan = read(plan_file, Plan)
    write_json(plan_file, replace(plan, rows=replace(plan.rows, witness={})))
    answer = certify(run, tmp_path, "rows", window_file, "--plan", plan_file)
    refused(answer, str(window_file), "the witness does not hold")


def test_bin_packing_files(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "tiny.bpp"
    path.write_text("4\n10\n6\n6\n4\n3\n")
    answer = certify(run, tmp_path, "bpp", path, "--require-closed")
    assert answer.code == 0, answer.err
    (row,) = answer.json
    assert (row["lower"], row["upper"], row["closed"]) == (2, 2, 1)
    folder = tmp_path / "certs"
    (file,) = folder.glob("*.cert.json")
    whole: Any = json.loads(file.read_text())
    assert whole["content"]["problem"] == "rows"
    (instance,) = folder.glob("*.instance.npz")
    assert run("verify", instance, file).code == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_every_instance_has_a_live_line(tmp_path: Path, workers: int) -> None:
    """On a terminal, and whichever process solves it."""
    for name, sizes in (("first", "6 6 4 3"), ("second", "7 7 7 2")):
        (tmp_path / f"{name}.bpp").write_text(f"4 10 {sizes}")
    files = [str(tmp_path / f"{name}.bpp") for name in ("first", "second")]
    argv = ("certify", "bpp", *files, "--time-limit=5", f"--workers={workers}")
    shown = on_a_terminal([sys.executable, "-m", "rpopt.cli", *argv])
    assert "first: 2 <= optimum <= 2" in shown
    assert "second: 3 <= optimum <= 3" in shown
    assert "certify bpp: 100%" in shown


def on_a_terminal(command: list[str]) -> str:
    """What a command writes to stderr when that is a terminal."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (25, 80))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as child:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert child.returncode == 0, shown
    return shown.decode()


@pytest.mark.parametrize(
    ("sizes", "words"),
    [("6 0", ("weight_I",)), ("6 11", ("weighs 11", "capacity is 10"))],
)
def test_bad_bin_packing_files_are_refused(
    run: Run, tmp_path: Path, sizes: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "tiny.bpp"
    path.write_text(f"2 10 {sizes}")
    refused(certify(run, tmp_path, "bpp", path), "tiny.bpp", *words)
    assert not list(tmp_path.glob("certs/*"))
