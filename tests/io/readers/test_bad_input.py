"""Bad input and odd recordings beyond `test_readers`: verl, AReaL, versions, evil."""

import base64
import io
import json
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.readers import read_window
from rpopt.io.readers.areal import sample_from_response
from rpopt.io.route_files import read_routes
from tests.cli.command import refused, runner
from tests.io.readers.test_readers import (
    LENGTHS,
    MODEL,
    WRITERS,
    Evil,
    Parts,
    broken,
    check,
    msgpack,
    nemo,
    parts,
    prime,
    slime,
    vllm,
    write_lines,
)


def verl_padded(path: Path, routes: Parts, dtype: str = "int16") -> Path:
    """A saved batch, as a DataProto holds it: samples in the middle of 14 columns."""
    layers, k = next(r.shape[1:] for r in routes if r is not None and len(r) > 3)
    mask = torch.zeros(len(LENGTHS), 14, dtype=torch.int64)
    padded = torch.zeros(len(LENGTHS), 14, layers, k, dtype=getattr(torch, dtype))
    for i, (n, part) in enumerate(zip(LENGTHS, routes, strict=True)):
        mask[i, 2 : 2 + n] = 1
        if part is not None:
            padded[i, 2 : 2 + len(part)] = torch.tensor(part)
    return save_batch(path, mask, padded)


def verl_nested(path: Path, routes: Parts) -> Path:
    """The newer form: rows of each sample by themselves."""
    mask = torch.arange(14) < torch.tensor(LENGTHS)[:, None]
    return save_batch(path, mask, [torch.tensor(part) for part in routes])


def save_batch(path: Path, mask: Any, routes: Any) -> Path:
    batch = {"attention_mask": mask, "routed_experts": routes}
    data = SimpleNamespace(batch=batch, non_tensor_batch={})
    path.write_bytes(pickle.dumps(data))
    return path


@pytest.mark.parametrize("write", [verl_padded, verl_nested])
def test_saved_verl_batches_give_the_naive_count(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "f", parts())
    window, report = read_window("verl", [path], MODEL, trust_pickle=True)
    check(window, parts())
    assert (report.num_without_routes, report.num_missing_rows) == (0, 0)


def test_types_of_verl_batches_may_differ(tmp_path: Path) -> None:
    paths = [
        verl_padded(tmp_path / dtype, parts(), dtype) for dtype in ("int16", "uint8")
    ]
    window, report = read_window("verl", paths, MODEL, trust_pickle=True)
    assert window.demand_NLE is not None
    assert np.array_equal(window.demand_NLE[:3], window.demand_NLE[3:])
    assert report.dtypes == ("int16", "uint8")


def with_K_or_L(change: str) -> Parts:
    """A tensor has one K and one number of layers for all samples."""
    cut = (slice(None), slice(None), slice(2)) if change == "K" else np.s_[:, :3]
    return [part[cut] for part in parts() if part is not None]


@pytest.mark.parametrize("change", ["K", "L", "id", "zero", "rows", "truncated"])
def test_bad_verl_files_are_named_and_leave_nothing(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = with_K_or_L(change) if change in "KL" else broken(change)
    write = verl_nested if change == "rows" else verl_padded
    path, out = write(tmp_path / "dump", routes), tmp_path / "w.npz"
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    config = {
        "num_hidden_layers": 5,
        "first_k_dense_replace": 1,
        "num_experts": 12,
        "num_experts_per_tok": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = runner(capsys)(
        *("window", "from-verl", path, "--trust-pickle"),
        *("--model", tmp_path / "config.json", "--out", out),
    )
    refused(answer, "dump")
    assert not out.exists()
    if change != "truncated":
        assert f"sample {0 if change in 'KL' else 1}" in answer.err
        assert "route" in answer.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt_len": 3}, "sample 1 has no field 'seqlen'"),
        ({"seqlen": 0}, "sample 1, field 'seqlen': '0' is no positive"),
        ({"seqlen": "9"}, "sample 1, field 'seqlen'"),
    ],
)
def test_bad_areal_lines_are_named(line: Any, words: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "f", [{"seqlen": 4}, line])
    with pytest.raises(FileFormatError, match=rf"f: {words}"):
        read_window("areal", [path], MODEL)
    path.write_text(path.read_text()[:-5])
    with pytest.raises(FileFormatError, match=r"f: .*line 2|f: .*sample 1"):
        read_window("areal", [path], MODEL)


def test_areal_responses_of_other_layers_are_refused() -> None:
    with pytest.raises(InstanceError, match=r"15 columns \(all layers\) or 12 \(MoE"):
        sample_from_response(np.zeros((8, 14), int), length_tokens=9, model=MODEL)


def test_an_unknown_version_is_named(tmp_path: Path) -> None:
    path = nemo(tmp_path / "nemo", parts())
    path.write_text(path.read_text().replace("nrlre1:", "nrlre2:"))
    with pytest.raises(FileFormatError, match=r"nemo: sample 0.*starts 'nrlre2:"):
        read_window("nemo-rl", [path], MODEL)
    path = tmp_path / "prime"
    older = [[0] * 9, None, None, None, None, None, None, None]
    path.write_bytes(msgpack.packb([older]))
    with pytest.raises(FileFormatError, match=r"prime: micro-batch 0 has 8 fields"):
        read_window("prime-rl", [path], MODEL)
    moved = [[0] * 9, *[None] * 7, [4, 4], None, None]
    path.write_bytes(msgpack.packb([moved]))
    with pytest.raises(FileFormatError, match="'seq_lens' does not split"):
        read_window("prime-rl", [path], MODEL)
    path = tmp_path / "train"
    torch.save({"format_version": 2, "samples": [{}], "dp_shards": []}, path)
    with pytest.raises(FileFormatError, match=r"train: .*save-debug-rollout-data"):
        read_window("slime", [path], MODEL)


def test_pickles_within_arrays_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    objects = np.array([Evil()], dtype=object)
    path = vllm(tmp_path / "vllm", parts())
    file = io.BytesIO()
    np.save(file, objects, allow_pickle=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    text = base64.b64encode(file.getvalue()).decode()
    lines[1]["choices"][0]["routed_experts"] = text
    with pytest.raises(
        FileFormatError, match=r"vllm: sample 1, field 'routed_experts'"
    ):
        read_window("vllm", [write_lines(path, lines)], MODEL)
    path = tmp_path / "miles"
    sample = {"tokens": [0] * 9, "rollout_routed_experts": objects}
    torch.save({"rollout_id": 0, "samples": [sample]}, path)
    with pytest.raises(FileFormatError, match=r"miles: .*never loaded"):
        read_window("slime", [path], MODEL)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("form", ["slime", "prime-rl", "verl", "nemo-rl"])
def test_only_the_first_turn_carries_routes(form: str, tmp_path: Path) -> None:
    """Later turns have no rows, rows of 0, or rows of -1; none of them is counted."""
    routes, path = parts(), tmp_path / "f"
    long = routes[2]
    assert long is not None
    first, later = long[:4], long[4:].copy()
    if form == "slime":
        slime(path, [*routes[:2], first])
    elif form == "prime-rl":
        later[:] = 0
        prime(path, [*routes[:2], np.concatenate([first, later])])
    elif form == "verl":
        verl_padded(path, [*routes[:2], first])
    else:
        later[:] = -1
        nemo(path, [*routes[:2], np.concatenate([first, later])])
    window, report = read_window(form, [path], MODEL, trust_pickle=form == "verl")
    check(window, [*routes[:2], first])
    assert report.num_missing_rows == 7
    assert window.routed_N.tolist() == [8, 5, 4]


FORMS = {**WRITERS, "verl": ("verl", verl_padded), "verl nested": ("verl", verl_nested)}


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=30)
@given(
    cut=st.none() | st.floats(0, 1, exclude_max=True),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255))),
)
def test_damage_is_one_kind_of_error(form: str, cut: Any, flips: Any) -> None:
    source, write = FORMS[form]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "dump", parts())
        data = bytearray(path.read_bytes())
        for place, value in flips:
            data[int(place * len(data))] = value
        path.write_bytes(data[: None if cut is None else int(cut * len(data))])
        said = str(path)
        try:
            read_window(source, [path], MODEL, trust_pickle=source == "verl")
        except FileFormatError as error:
            said = str(error)
        assert said.count(str(path)) == 1
        assert "\n" not in said


@pytest.mark.parametrize("header", ["(", "\\", "'\n"])
def test_a_damaged_header_of_an_array_is_one_too(header: str, tmp_path: Path) -> None:
    """NumPy reads the header as Python text."""
    file = io.BytesIO()
    np.save(file, parts()[0])
    damaged = file.getvalue().replace(b"}", header.encode(), 1)
    (tmp_path / "a.npy").write_bytes(damaged)
    (tmp_path / "samples.json").write_text('[{"file": "a.npy", "length": 9}]')
    with pytest.raises(FileFormatError, match=r"a\.npy: .*another format"):
        list(read_routes(tmp_path))
    routes = base64.b64encode(damaged).decode()
    choice = {"token_ids": [0] * 7, "routed_experts": routes}
    line = {"prompt_token_ids": [0, 0], "choices": [choice]}
    with pytest.raises(FileFormatError, match=r"sample 0.*no \.npy array"):
        read_window("vllm", [write_lines(tmp_path / "f", [line])], MODEL)
