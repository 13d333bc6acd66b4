"""Recordings of expert load: every form gives the same sum, and bad input is named."""

import ast
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rpopt.errors import FileFormatError
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.expert_load import read_expert_load
from rpopt.records import Int64Array
from tests.stacks.packages import source

MODEL = RoutedModel(num_layers=4, moe_layers=(1, 2, 3), num_experts=6, top_k=2)
MAP = np.array([[0, 1, 2, 3, 4, 5, 0, 3]] * 2 + [[5, 4, 3, 2, 1, 0, 0, 1]] * 2)
"""Logical expert of each of eight physical ones; two have a replica."""


def tokens(num: int, seed: int) -> np.ndarray:
    """Physical ids [layers, tokens, 8] as the recorder keeps them, K = 2; layer 0 is
    dense and the last token padding."""
    rng = np.random.default_rng(seed)
    ids = np.full((4, num, 8), -1, dtype=np.int32)
    for layer in (1, 2, 3):
        for token in range(num - 1):
            experts = rng.choice(6, size=2, replace=False)
            slots = [rng.choice(np.flatnonzero(MAP[layer] == e)) for e in experts]
            ids[layer, token, :2] = slots
    return ids


PASSES = [tokens(7, 0), tokens(1, 1), tokens(5, 2)]


def naive_load(passes: list[np.ndarray]) -> Int64Array:
    load = np.zeros((4, 6), dtype=np.int64)
    for ids in passes:
        for layer, token, k in np.argwhere(ids >= 0):
            load[layer, MAP[layer, ids[layer, token, k]]] += 1
    return load


def physical(ids: np.ndarray) -> torch.Tensor:
    counts = [np.bincount(row[row >= 0].ravel(), minlength=8) for row in ids]
    return torch.tensor(np.array(counts), dtype=torch.int32)


def save_stat(path: Path, passes: list[np.ndarray]) -> Path:
    steps = np.zeros((6, 4, 6), dtype=np.int32)  # a buffer that was not filled
    for step, ids in zip(steps, passes, strict=False):
        step[:] = naive_load([ids])
    data = {"rank": 0, "logical_count": torch.tensor(steps)}
    torch.save({**data, "average_utilization_rate_over_window": None}, path)
    return path


def records(passes: list[np.ndarray]) -> list[dict[str, Any]]:
    return [
        {
            "forward_pass_id": i,
            "rank": 0,
            "gatherer_key": "primary",
            "global_physical_count": physical(ids),
        }
        for i, ids in enumerate(passes)
    ]


def save_records(path: Path, found: list[dict[str, Any]], mapping: Any = MAP) -> Path:
    last = torch.tensor(mapping, dtype=torch.int64)
    torch.save({"records": found, "last_physical_to_logical_map": last}, path)
    return path


def save_per_pass(path: Path, passes: list[np.ndarray]) -> Path:
    return save_records(path, records(passes))


def save_per_token(path: Path, passes: list[np.ndarray]) -> Path:
    found = records(passes)
    for record, ids in zip(found, passes, strict=True):
        record["topk_ids_of_layer"] = torch.tensor(ids)
        record |= {"input_ids": [0] * ids.shape[1], "misc_objects": []}
    return save_records(path, found)


def save_csv(path: Path, passes: list[np.ndarray]) -> Path:
    path = path.with_suffix(".csv")
    load = naive_load(passes)
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in load.tolist()))
    return path


def save_named_csv(path: Path, passes: list[np.ndarray]) -> Path:
    path = path.with_suffix(".csv.gz")
    load = naive_load(passes).tolist()
    lines = ["layer," + ",".join(f"e{i}" for i in range(6))]
    lines += [",".join(map(str, [i, *load[i]])) for i in (1, 2, 3)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def save_json(path: Path, passes: list[np.ndarray]) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps({"logical_count": naive_load(passes).tolist()}))
    return path


FORMS: dict[str, Callable[[Path, list[np.ndarray]], Path]] = {
    "stat": save_stat,
    "per_pass": save_per_pass,
    "per_token": save_per_token,
    "csv": save_csv,
    "named csv": save_named_csv,
    "json": save_json,
}


@pytest.mark.parametrize("model", [None, MODEL])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_naive_sum(
    form: str, model: RoutedModel | None, tmp_path: Path
) -> None:
    paths = [
        FORMS[form](tmp_path / "a.pt", PASSES[:2]),
        FORMS[form](tmp_path / "b.pt", PASSES[2:]),
    ]
    load = read_expert_load(paths, model)
    assert np.array_equal(load.load_LE, naive_load(PASSES)[1:])
    assert load.layer_ids_L.tolist() == [1, 2, 3]
    assert load.num_passes == 2  # the second pass was idle


def test_moe_layers_alone_are_numbered_by_the_model(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,2,3,4,5,6\n" * 3)
    assert read_expert_load([path], MODEL).layer_ids_L.tolist() == [1, 2, 3]
    assert read_expert_load([path]).layer_ids_L.tolist() == [0, 1, 2]


def test_physical_ids_are_mapped_back_as_sglang_does(tmp_path: Path) -> None:
    text = source("sglang", "srt/eplb/expert_distribution.py")
    wanted = (
        "_convert_per_token_to_global_physical_count",
        "_convert_global_physical_count_to_logical_count",
    )
    nodes = [n for n in ast.parse(text).body if getattr(n, "name", "") in wanted]
    theirs: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module(nodes, []), "sglang", "exec"), theirs)
    count = theirs[wanted[0]](7, 4, 8, torch.tensor(PASSES[0]))
    logical = theirs[wanted[1]](count[None], 4, 6, torch.tensor(MAP))
    load = read_expert_load([save_per_token(tmp_path / "a.pt", PASSES[:1])])
    assert np.array_equal(load.load_LE, logical[0, 1:])


def per_token(change: Callable[[np.ndarray], Any]) -> Callable[[Path], Path]:
    """A per-token file whose first record was changed."""

    def save(path: Path) -> Path:
        ids = PASSES[0].copy()
        changed = change(ids)
        found = records(PASSES)
        found[0]["topk_ids_of_layer"] = torch.tensor(
            ids if changed is None else changed
        )
        return save_records(path, found)

    return save


def put(at: Any, value: Any) -> Callable[[np.ndarray], None]:
    def change(ids: np.ndarray) -> None:
        ids[at] = value

    return change


def saved(value: Any) -> Callable[[Path], Path]:
    def save(path: Path) -> Path:
        torch.save(value, path)
        return path

    return save


def counted(array: Any) -> Callable[[Path], Path]:
    return saved({"logical_count": torch.tensor(array)})


def truncated(path: Path) -> Path:
    save_stat(path, PASSES)
    path.write_bytes(path.read_bytes()[:-60])
    return path


def written(name: str, data: str | bytes) -> Callable[[Path], Path]:
    def save(path: Path) -> Path:
        path = path.with_name(name)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return save


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


FULL = np.ones((2, 4, 6), dtype=np.int64)
DENSE = FULL * np.array([0, 1, 1, 1])[:, None]
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "truncated": (truncated, "truncated or damaged"),
    "code": (saved({"records": [Evil()]}), "never loaded"),
    "version": (saved({"counts": torch.ones(4, 6)}), "neither 'logical_count' nor"),
    "no map": (saved({"records": records(PASSES)}), "last_physical_to_logical_map"),
    "no records": (lambda p: save_records(p, []), "no forward pass"),
    "no count": (lambda p: save_records(p, [{}]), "record 0 has no .*physical_count"),
    "map of another E": (
        lambda p: save_records(p, records(PASSES), MAP % 5),
        "5 experts; the model has 6",
    ),
    "map without expert": (
        lambda p: save_records(p, records(PASSES), np.where(MAP == 2, 1, MAP)),
        "layer 0 has no slot of expert 2",
    ),
    "count of other P": (
        lambda p: save_records(p, records(PASSES), MAP[:, :6]),
        "record 0, field 'global_physical_count'",
    ),
    "all zero": (counted(0 * FULL), "every count is 0"),
    "negative": (counted(-FULL), "-1"),
    "fractions": (counted(FULL + 0.5), "whole numbers|integers"),
    "axes": (counted(FULL[0, 0]), "logical_count has shape"),
    "wrong L": (counted(FULL[:, :2]), "2 layers; the model has 4"),
    "wrong E": (counted(FULL[:, :, :5]), "5 experts; the model has 6"),
    "load in a dense layer": (counted(FULL), "layer 0 has load"),
    "no load in a layer": (
        counted(DENSE * [[1], [0], [1], [1]]),
        "layer 1 has no load",
    ),
    "physical id": (per_token(put((1, 2, 0), 8)), "physical id 8 of 8"),
    "negative id": (per_token(put((1, 2, 0), -2)), "topk_ids_of_layer"),
    "wrong K": (per_token(put((1, 2, 2), 7)), "token 2 has 3 ids in layer 1; K = 2"),
    "repeated": (per_token(put((1, 2, slice(0, 2)), [0, 6])), "repeats an expert"),
    "ids of other L": (per_token(lambda ids: ids[:3]), "3 layers; the map has 4"),
    "ids of two axes": (per_token(lambda ids: ids[0]), "topk_ids_of_layer"),
    "short line": (written("a.csv", "1,2,3\n4,5\n"), "line 2 has 2 cells"),
    "no number": (written("a.csv", "1,2,3\n4,x,5\n"), "line 2 holds 'x'"),
    "fraction": (written("a.csv", "1,2,3\n4,1.5,5\n"), "line 2 holds '1.5'"),
    "names only": (written("a.csv", "layer,a,b\n"), "no line of numbers"),
    "layer twice": (written("a.csv", "layer,a,b\n1,2,3\n1,2,3\n"), "increasing"),
    "cut gzip": (written("a.csv.gz", gzip.compress(b"1,2\n" * 9)[:-9]), "a.csv.gz"),
    "other json": (written("a.json", '{"x": 1}'), "logical_count"),
    "cut json": (written("a.json", '{"logical_count": [[1'), "truncated"),
    "ragged json": (written("a.json", '{"logical_count": [[1],[1,2]]}'), "a.json"),
    "other ending": (written("a.npy", b""), "end in .pt"),
    "missing": (lambda p: p, "no such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_file_and_field(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save, words = BAD[case]
    path = save(tmp_path / "load.pt")
    with pytest.raises(FileFormatError, match=words) as error:
        read_expert_load([path], MODEL)
    assert path.name in str(error.value)
    assert not (tmp_path / "ran").exists()


def test_files_of_two_models_are_not_added(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    paths[0].write_text("1,2\n")
    paths[1].write_text("1,2,3\n")
    with pytest.raises(FileFormatError, match=r"b\.csv.*do not mix models"):
        read_expert_load(paths)
