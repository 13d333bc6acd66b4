"""Every reader: the same routes give the same window, and bad input is named."""

import base64
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rpopt.errors import FileFormatError
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers import read_window
from rpopt.io.readers.areal import sample_from_response
from rpopt.io.readers.slime import read_schedule
from rpopt.io.readers.verl import samples_from_batch
from rpopt.io.routes import window_from_routes
from rpopt.window import Window
from tests.cli.command import refused, runner
from tests.io.test_routes import draw_routes, naive_demand

msgpack = pytest.importorskip("msgpack", reason="msgpack is not installed")
MODEL = RoutedModel(num_layers=5, moe_layers=(1, 2, 3, 4), num_experts=12, top_k=3)
LENGTHS = [9, 6, 12]
Parts = list[np.ndarray | None]


def parts() -> Parts:
    """Routes of all layers without the last row; layer 0 is dense."""
    arrays = [draw_routes(n, n - 1).astype(np.int32) for n in LENGTHS]
    for array in arrays:
        array[:, 0] = 0
    return list(arrays)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def slime(path: Path, routes: Parts) -> Path:
    samples = [
        {
            "tokens": [0] * n,
            "rollout_routed_experts": None if r is None else torch.tensor(r),
        }
        for n, r in zip(LENGTHS, routes, strict=True)
    ]
    torch.save({"rollout_id": 0, "samples": samples}, path)
    return path


def miles(path: Path, routes: Parts) -> Path:
    samples = [
        {"tokens": [0] * n, "rollout_routed_experts": r}
        for n, r in zip(LENGTHS, routes, strict=True)
    ]
    torch.save({"rollout_id": 0, "samples": samples}, path)
    return path


def prime(path: Path, routes: Parts) -> Path:
    batches = []
    for n, r in zip(LENGTHS, routes, strict=True):
        batch: list[Any] = [None] * 11
        batch[0], batch[8] = [0] * n, [n]
        if r is not None:
            full = np.concatenate([r, r[-1:]])
            batch[10] = [full.tobytes(), list(full.shape), str(full.dtype)]
        batches.append(batch)
    path.write_bytes(msgpack.packb(batches))
    return path


def nemo(path: Path, routes: Parts) -> Path:
    lines = []
    for n, r in zip(LENGTHS, routes, strict=True):
        line: dict[str, Any] = {"input_lengths": n}
        if r is not None:
            shape = "x".join(map(str, r.shape))
            line["routed_experts"] = f"nrlre1:{r.dtype}:{shape}:{b64(r.tobytes())}"
        lines.append(line)
    return write_lines(path, lines)


def vllm(path: Path, routes: Parts) -> Path:
    lines = []
    for n, r in zip(LENGTHS, routes, strict=True):
        choice: dict[str, Any] = {"token_ids": [0] * (n - 2)}
        if r is not None:
            file = io.BytesIO()
            np.save(file, r)
            choice["routed_experts"] = b64(file.getvalue())
        lines.append({"prompt_token_ids": [0, 0], "choices": [choice]})
    return write_lines(path, lines)


def vllm_split(path: Path, routes: Parts) -> Path:
    lines = []
    for n, r in zip(LENGTHS, routes, strict=True):
        line: dict[str, Any] = {"prompt_token_ids": [0, 0]}
        line["choices"] = [{"token_ids": [0] * (n - 2)}]
        if r is not None:
            line["prompt_routed_experts"] = r[:2].tolist()
            line["choices"][0]["routed_experts"] = r[2:].tolist()
        lines.append(line)
    return write_lines(path, lines)


def sglang(path: Path, routes: Parts) -> Path:
    lines = []
    for n, r in zip(LENGTHS, routes, strict=True):
        meta: dict[str, Any] = {"prompt_tokens": 2, "completion_tokens": n - 2}
        if r is not None:
            meta["routed_experts"] = b64(r.astype(np.int32).tobytes())
        lines.append({"meta_info": meta})
    return write_lines(path, lines)


WRITERS: dict[str, tuple[str, Callable[[Path, Parts], Path]]] = {
    "slime": ("slime", slime),
    "miles": ("slime", miles),
    "prime-rl": ("prime-rl", prime),
    "nemo-rl": ("nemo-rl", nemo),
    "vllm": ("vllm", vllm),
    "vllm split": ("vllm", vllm_split),
    "sglang": ("sglang", sglang),
}


def check(window: Window, routes: Parts) -> None:
    assert window.length_N.tolist() == LENGTHS
    assert window.layer_ids_L is not None
    assert window.layer_ids_L.tolist() == [1, 2, 3, 4]
    assert window.demand_NLE is not None
    for demand_LE, part in zip(window.demand_NLE, routes, strict=True):
        expected = (
            np.zeros((4, 12)) if part is None else naive_demand(part, [1, 2, 3, 4])
        )
        assert np.array_equal(demand_LE, expected)


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_gives_the_naive_count(form: str, tmp_path: Path) -> None:
    source, write = WRITERS[form]
    window, report = read_window(source, [write(tmp_path / "f", parts())], MODEL)
    check(window, parts())
    assert (report.num_without_routes, report.num_missing_rows) == (0, 0)


@pytest.mark.parametrize("form", WRITERS)
def test_missing_routes_are_counted(form: str, tmp_path: Path) -> None:
    source, write = WRITERS[form]
    routes = [parts()[0], None, parts()[2]]
    window, report = read_window(source, [write(tmp_path / "f", routes)], MODEL)
    check(window, routes)
    assert report.num_without_routes == 1


@pytest.mark.parametrize("form", WRITERS)
def test_types_may_differ_between_batches(form: str, tmp_path: Path) -> None:
    source, write = WRITERS[form]
    second, dtype = parts(), "int8" if form == "nemo-rl" else "uint8"
    paths = [
        write(tmp_path / "a", parts()),
        write(tmp_path / "b", [p.astype(dtype) for p in second if p is not None]),
    ]
    window, _ = read_window(source, paths, MODEL)
    assert window.demand_NLE is not None
    assert np.array_equal(window.demand_NLE[:3], window.demand_NLE[3:])


def broken(change: str) -> Parts:
    routes = parts()
    bad = routes[1]
    assert bad is not None
    if change == "K":
        bad = bad[:, :, :2]
    elif change == "L":
        bad = bad[:, :3]
    elif change == "id":
        bad[2, 3, 1] = 12
    elif change == "zero":
        bad[:] = 0
    elif change == "rows":
        bad = np.concatenate([bad, bad, bad])
    return [routes[0], bad, routes[2]]


@pytest.mark.parametrize("change", ["K", "L", "id", "zero", "rows", "truncated"])
@pytest.mark.parametrize("form", WRITERS)
def test_bad_input_is_named_and_leaves_nothing(
    form: str, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, write = WRITERS[form]
    path = write(tmp_path / "dump", broken(change))
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    config = {
        "num_hidden_layers": 5,
        "first_k_dense_replace": 1,
        "num_experts": 12,
        "num_experts_per_tok": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, out = tmp_path / "config.json", tmp_path / "w.npz"
    answer = runner(capsys)(
        "window", f"from-{source}", path, "--model", model, "--out", out
    )
    refused(answer, "dump")
    assert not out.exists()
    if change != "truncated":
        assert "sample 1" in answer.err or "batch 1" in answer.err
        assert "route" in answer.err


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize("source", ["slime", "verl"])
def test_a_pickle_that_would_run_code_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil"
    if source == "slime":
        torch.save({"samples": [Evil()]}, path)
    else:
        path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FileFormatError, match=r"evil.*never loaded|trust-pickle"):
        read_window(source, [path], MODEL)
    assert not (tmp_path / "ran").exists()


def test_verl_batches_in_memory() -> None:
    mask = np.zeros((3, 14), dtype=np.int64)
    padded = np.zeros((3, 14, 5, 3), dtype=np.int16)
    for i, (n, part) in enumerate(zip(LENGTHS, parts(), strict=True)):
        mask[i, 2 : 2 + n] = 1
        padded[i, 2 : 1 + n] = part
    data = SimpleNamespace(
        batch={"attention_mask": torch.tensor(mask), "routed_experts": padded},
        non_tensor_batch={"uid": np.array(["b", "a", "b"])},
    )
    window = window_from_routes(
        samples_from_batch(data), top_k=3, num_experts=12, moe_layers=MODEL.moe_layers
    )
    check(window, parts())
    assert window.prompt_group_N is not None
    assert window.prompt_group_N.tolist() == [0, 1, 0]


def test_areal_drops_a_duplicated_prefix(tmp_path: Path) -> None:
    whole = parts()[2]
    assert whole is not None
    flat = np.concatenate([whole[:5], whole]).reshape(16, -1)
    sample = sample_from_response(flat, length_tokens=12, model=MODEL)
    assert sample.routes is not None
    assert np.array_equal(sample.routes, whole)
    path = write_lines(tmp_path / "f", [{"seqlen": n} for n in LENGTHS])
    window, _ = read_window("areal", [path], MODEL)
    assert window.length_N.tolist() == LENGTHS


SHARDS = [
    {
        "data_parallel_rank": rank,
        "sample_indices": [100 + rank, 102 + rank],  # counts on over rollouts
        "partition": [rank, rank + 2],
        "micro_batch_indices": [[1], [0]],
        "num_microbatches": [2],
    }
    for rank in (1, 0)
]


def test_schedule_of_slime_train_data(tmp_path: Path) -> None:
    path = tmp_path / "train.pt"
    torch.save({"format_version": 2, "dp_shards": SHARDS}, path)
    assert read_schedule([path]) == [[[2], [0]], [[3], [1]]]


def test_schedule_of_miles_train_data(tmp_path: Path) -> None:
    paths = [tmp_path / f"{rank}.pt" for rank in range(4)]
    for rank, path in enumerate(paths):  # two tensor parallel copies of every rank
        shard = SHARDS[1 - rank // 2]
        torch.save({"rollout_id": 3, "rank": rank, "rollout_data": shard}, path)
    assert read_schedule(paths) == [[[2], [0]], [[3], [1]]]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"format_version": 3, "dp_shards": SHARDS}, "format_version is 3"),
        ({"samples": []}, "format_version is None"),
        ({"format_version": 2, "dp_shards": []}, "dp_shards is empty"),
        ({"format_version": 2}, "no field 'dp_shards'"),
        ({"rollout_data": SHARDS[0]}, "no field 'rank'"),
        ({"rank": 5, "rollout_data": {}}, "rank 5 has no field 'partition'"),
        (
            {"rank": 5, "rollout_data": SHARDS[0] | {"micro_batch_indices": [[1]]}},
            "rank 5, micro_batch_indices do not hold each of its 2",
        ),
        ([Evil()], "never loaded"),
    ],
)
def test_bad_schedules_are_named(data: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "train.pt"
    torch.save(data, path)
    with pytest.raises(FileFormatError, match=rf"train\.pt.*{words}"):
        read_schedule([path])


def test_several_steps_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "train.pt"
    shard = SHARDS[0] | {"num_microbatches": [1, 1]}
    torch.save({"format_version": 2, "dp_shards": [shard]}, path)
    assert read_schedule([path]) == [[[3], [1]]]
    assert "holds 2 optimizer steps" in caplog.text


def test_samples_without_loss_are_trained_and_stay(tmp_path: Path) -> None:
    path = slime(tmp_path / "f", parts())
    data = torch.load(path, weights_only=True)
    data["samples"][1]["remove_sample"] = True
    torch.save(data, path)
    check(read_window("slime", [path], MODEL)[0], parts())
