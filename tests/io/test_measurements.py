"""Tables of measured times."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from rpopt.calibration import fit
from rpopt.errors import FileFormatError
from rpopt.io.measurements import read_measurements


def test_json_lines_of_the_trainer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"tokens": 5, "copies": 7, "seconds": 0.5, "name": "x"}] * 2
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_measurements(path)
    assert found.seconds_M.tolist() == [0.5, 0.5]
    assert set(found.features) == {"tokens", "copies"}


def test_a_chunk_after_a_cached_prefix(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    text = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
    text += "4,10,0,0,2\n0,0,1,8,3\n"
    path.write_bytes(gzip.compress(text.encode()))
    found = read_measurements(path)
    assert found.features["tokens_squared"].tolist() == [16 + 80]
    assert found.seconds_M.tolist() == [2e-6]


def test_an_moe_layer_and_small_kernels(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("tokens,activated_experts,time_us\n2,8,1\n64,8,5\n")
    assert read_measurements(path, top_k=4).features["copies"].tolist() == [8, 256]
    large = read_measurements(path, top_k=4, min_tokens=32)
    assert large.features["activated"].tolist() == [8]
    with pytest.raises(FileFormatError, match="min_tokens"):
        read_measurements(path, top_k=4, min_tokens=33)
    with pytest.raises(FileFormatError, match="top_k"):
        read_measurements(path)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "tokens,seconds\n1,x\n", "{", "tokens,seconds\n1\n"]
)
def test_no_such_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(FileFormatError):
        read_measurements(path)


def test_recorded_kernel_times(data_dir: Path) -> None:
    folder = data_dir / "kernel-times-llmservingsim"
    expert = read_measurements(
        folder / "mixtral8x7b_h100_tp1_one_expert.csv.gz", min_tokens=256
    )
    found = fit(expert)
    assert found.coefficients["copies"] == pytest.approx(0.42e-6, rel=0.02)
    assert found.median_error < 0.02
    attention = read_measurements(
        folder / "qwen3_30b_a3b_rtxpro6000_attention.csv.gz", min_tokens=512
    )
    assert fit(attention).r_squared > 0.98
    assert np.all(attention.features["tokens_squared"] > 0)
