"""`rpopt plan`: windows in, checked plans out; nothing half done."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rpopt.io import read, write_json
from rpopt.io.files import read_npz
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Plan
from rpopt.topology import Topology
from rpopt.verifier import verify_plan
from tests.cases import make_plan, medium_case
from tests.cli.command import (
    SETTINGS,
    Answer,
    Run,
    forge,
    refused,
    save,
    shorter,
    with_length,
)

ALWAYS = ("--seed=0", "--max-sweeps=3", *SETTINGS)


def plan(run: Run, *argv: object) -> Answer:
    """Plan into the folder `out` beside the first window."""
    out = next(arg for arg in argv if isinstance(arg, Path)).parent / "out"
    return run("plan", "--out-dir", out, *ALWAYS, *argv)


def nothing(folder: Path) -> None:
    """No output was left, whole or in part."""
    assert not (folder / "out").exists() or not list((folder / "out").iterdir())


def test_a_plan_that_verifies(run: Run, tmp_path: Path, window_file: Path) -> None:
    answer = plan(run, window_file, "--json")
    assert answer.code == 0
    found = read(tmp_path / "out" / "w.plan.json", Plan)
    verify_plan(medium_case().window, found)
    (row,) = answer.json
    assert row["window"] == "w"
    assert row["J"] == found.j
    assert row["J_bound"] == found.lower_ticks / found.unit_ticks
    assert (row["rows"], row["rows_bound"]) == (found.rows.upper, found.rows.lower)
    assert (row["samples"], row["efficiency"]) == (40, 1 / found.j)
    assert found.seed == 0


def test_the_same_command_gives_the_same_file(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    texts = []
    for name in ("a", "b"):
        run("plan", window_file, "--out-dir", tmp_path / name, *ALWAYS)
        texts.append((tmp_path / name / "w.plan.json").read_text())
    assert texts[0] == texts[1]


def test_a_table_of_several_windows(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    second = save(tmp_path / "v.npz", medium_case(1).window)
    answer = plan(run, window_file, second)
    assert answer.code == 0
    header, *lines = answer.out.splitlines()
    assert header.split()[:3] == ["window", "samples", "tokens"]
    assert [line.split()[0] for line in lines] == ["w", "v"]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "w.plan.json",
        "v.plan.json",
    }


def test_instances_and_solutions_are_saved_on_request(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    assert plan(run, window_file, "--save-instances").code == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    rooms = ("packing", "placement", "layout")
    assert names == {"w.plan.json"} | {
        f"w.{room}{end}" for room in rooms for end in (".npz", "-solution.json")
    }
    found = read(tmp_path / "out" / "w.plan.json", Plan)
    instance = read_npz(tmp_path / "out" / "w.layout.npz")
    assert isinstance(instance, LayoutInstance)
    assert evaluate(instance, found.layout).j_ticks == found.j_ticks


def test_lengths_only_from_end_to_end(run: Run, tmp_path: Path) -> None:
    window = medium_case(routes=False).window
    path = save(tmp_path / "w.npz", window)
    assert plan(run, path, "--save-instances").code == 0
    made = tmp_path / "out" / "w.plan.json"
    found = read(made, Plan)
    assert found.placement is None
    assert not (tmp_path / "out" / "w.placement.npz").exists()
    for argv in (
        ("verify", path, made),
        ("compare", path, made),
        ("show", made, "--window", path),
        ("show", path),
    ):
        answer = run(*argv)
        assert answer.code == 0, answer.err
    assert "lengths only" in run("show", made, "--window", path).out


def test_a_lower_estimate_is_called_one(
    run: Run, tmp_path: Path, window_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert plan(run, window_file, "--tp=2", "--cp=2").code == 0
    assert "J is a lower estimate" in caplog.text
    caplog.clear()
    made = tmp_path / "out" / "w.plan.json"
    assert run("compare", window_file, made).code == 0
    assert "J is a lower estimate" in caplog.text
    assert "lower estimate" in run("show", made, "--window", window_file).out


def test_a_start_is_never_made_worse(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    run("plan", window_file, "--out-dir", tmp_path, *ALWAYS[2:], "--seed=1",
        "--max-sweeps=30")  # fmt: skip
    start = tmp_path / "w.plan.json"
    argv = ("--start", start, "--max-sweeps=0")
    assert (
        run("plan", window_file, "--out-dir", tmp_path / "out", *ALWAYS, *argv).code
        == 0
    )
    again = read(tmp_path / "out" / "w.plan.json", Plan)
    assert again.j_ticks <= read(start, Plan).j_ticks


def test_the_placement_in_force_is_kept_where_it_is_as_good(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    assert plan(run, window_file).code == 0
    first = tmp_path / "out" / "w.plan.json"
    other = ("--out-dir", tmp_path / "other", *ALWAYS, "--current", first)
    assert run("plan", window_file, *other).code == 0
    before, after = read(first, Plan), read(tmp_path / "other/w.plan.json", Plan)
    assert before.placement is not None
    assert after.placement is not None
    assert not np.any(after.placement.num_moved(before.placement))


def test_two_windows_of_one_name_are_refused_before_the_work(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    (tmp_path / "deep").mkdir()
    twin = save(tmp_path / "deep" / "w.npz", medium_case(1).window)
    answer = plan(run, window_file, twin)
    refused(answer, "2 inputs are called 'w'", "each other's plans", "rename them")
    nothing(tmp_path)
    refused(plan(run, window_file, window_file), "'w'")


def test_an_error_in_one_of_several_windows_names_its_file(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    few = save(tmp_path / "few.npz", shorter(3))
    refused(plan(run, window_file, few), str(few), "3 samples cannot fill 4 cells")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["w.plan.json"]
    verify_plan(medium_case().window, read(tmp_path / "out" / "w.plan.json", Plan))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--token-cap=40",), ("samples (ids", "token_cap = 40", "'alone' or 'drop'")),
        (("--token-cap=2", "--oversize=drop"), ("pad_multiple = 4 exceeds",)),
        (
            ("--token-cap=4", "--pad-multiple=1", "--oversize=drop", "--dp=200"),
            ("200 cells", "dummies"),
        ),
        (("--dp=64",), ("40 samples cannot fill 64 cells", "allow zero-weight")),
        (("--row-multiple=11",), ("44 cells", "row_multiple")),
        (("--dp=6", "--ep=3"), ("8 experts", "ep = 3", "choose an ep that divides")),
        (("--tp=3", "--dp=6"), ("etp x ep = 1 x 2", "do not divide")),
        (("--dp=3",), ("dp = 3 is not a multiple of the 2 ranks",)),
        (("--dp=0",), ("dp = 0",)),
        (("--dp=100000000000000000000",), ("exceeds 1048576",)),
        (("--dp=1048576", "--dummies", "--row-multiple=1048576"), ("allocate",)),
        (("--omega=1.5",), ("omega = 1.5 lies outside [0, 1]",)),
        (("--omega=-1/2",), ("omega = -1/2",)),
        (("--c1=nan",), ("c1 = 'nan' is not a finite number",)),
        (("--c2=inf",), ("c2 = 'inf' is not a finite number",)),
        (("--token-cap=-5",), ("token_cap = -5",)),
        (("--pad-multiple=0",), ("pad_multiple = 0",)),
        (("--max-samples-per-cell=0",), ("max_samples_per_cell = 0",)),
        (("--max-sweeps=-1",), ("a limit of -1 sweeps",)),
        (("--max-runtime=-1",), ("a time limit of -1.0 s",)),
        (("--max-runtime=nan",), ("a time limit of nan s",)),
        (("--preset=none",), ("'none'",)),
        (("--config=nowhere.toml",), ("nowhere.toml",)),
    ],
)
def test_bad_settings_are_refused(
    run: Run,
    tmp_path: Path,
    window_file: Path,
    flags: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    refused(plan(run, window_file, *flags), *words)
    nothing(tmp_path)


def test_missing_settings_and_limits_are_named(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    base = ("plan", window_file, "--out-dir", tmp_path / "out", "--seed=0")
    for left_out, words in (
        ("--max-sweeps", ("no stop criterion", "--max-runtime or --max-sweeps")),
        ("--dp", ("dp is missing", "--config")),
        ("--token-cap", ("token_cap is missing",)),
        ("--omega", ("neither omega nor expert_per_copy",)),
    ):
        kept = [flag for flag in ALWAYS if not flag.startswith(left_out)]
        refused(run(*base, *kept), *words)
    nothing(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length_N": with_length(3, -2)}, ("sample 3 has length -2",)),
        ({"length_N": with_length(3, 0)}, ("sample 3 has length 0",)),
        ({"length_N": with_length(3, 2**31)}, ("sample 3 has length 2147483648",)),
        ({"length_N": with_length(3, 2.5)}, ("length_N", "save it as integers")),
        (
            {"length_N": np.full(40, 2**63, np.uint64)},
            ("length_N", "uint64", "int64"),
        ),
        ({"length_N": np.zeros(0, dtype=int)}, ("the window is empty",)),
        ({"length_N": [5, 6]}, ("demand_NLE has 40 entries for 2 samples",)),
        ({"length_N": with_length(0, 1)}, ("sample 0 has", "routed tokens but only 1")),
        ({"routed_tokens_N": [1] * 40}, ("top_k x routed tokens = 2 x 1",)),
        ({"demand_NLE": np.zeros((40, 3, 0), np.int32)}, ("no axis may be 0",)),
    ],
)
def test_bad_windows_are_refused(
    run: Run, tmp_path: Path, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    """Also where the digest of the file was made to match."""
    path = forge(tmp_path / "w.npz", **changes)
    refused(plan(run, path), str(path), *words)
    nothing(tmp_path)


def test_damaged_windows_are_refused(run: Run, tmp_path: Path) -> None:
    whole = save(tmp_path / "w.npz", medium_case().window).read_bytes()
    path = tmp_path / "w.npz"
    path.write_bytes(whole[: len(whole) // 2])
    refused(plan(run, path), str(path), "truncated, damaged")
    path.write_bytes(b"")
    refused(plan(run, path), str(path))
    forged = forge(path)
    with np.load(forged) as arrays:
        kept = dict(arrays)
    kept["length_N"] = kept["length_N"] + 1
    np.savez(path, **kept)
    refused(plan(run, path), str(path), "does not match its digest")
    header = str(kept["header"]).replace("rpopt.window/1", "rpopt.window/9")
    np.savez(path, **{**kept, "header": np.array(header)})
    refused(plan(run, path), str(path), "'rpopt.window/9'", "install the version")
    nothing(tmp_path)


def test_a_plan_is_no_window(run: Run, tmp_path: Path, plan_file: Path) -> None:
    refused(plan(run, plan_file), str(plan_file), "holds a Plan; a Window is needed")
    nothing(tmp_path)


def test_folders_that_cannot_be_written_are_found_before_the_work(
    run: Run, tmp_path: Path, window_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> Plan:
        raise AssertionError("the window was planned")

    monkeypatch.setattr("rpopt.planner.plan", never)
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "deep", Path("/proc")):
        answer = run("plan", window_file, "--out-dir", out, *ALWAYS)
        refused(answer, str(out), "not a folder that can be written to")


def test_starts_and_placements_that_do_not_fit(
    run: Run, tmp_path: Path, window_file: Path
) -> None:
    other = tmp_path / "other.json"
    write_json(other, make_plan(medium_case(1)))
    refused(
        plan(run, window_file, "--start", other),
        str(window_file),
        "give a plan of this window",
    )
    crowded = tmp_path / "crowded.json"
    case = medium_case()
    tight = replace(make_plan(case), layout=make_plan(medium_case(1)).layout)
    write_json(crowded, tight)
    refused(plan(run, window_file, "--start", crowded), "the start's layout")
    wide = replace(case, topology=Topology(dp=4, ep=4))
    write_json(other, make_plan(wide))
    refused(plan(run, window_file, "--current", other), "the current placement")
    refused(plan(run, window_file, "--current", window_file), "a Plan is needed")
    nothing(tmp_path)
