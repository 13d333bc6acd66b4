"""The reference windows, and windows drawn like them."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io import reference
from rpopt.io.reference import WINDOWS, build_reference_like, read_reference
from rpopt.window import Window
from tests.io.test_synthetic import intraclass_correlation

NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")


def test_a_reference_window_comes_with_its_settings(data_dir: Path) -> None:
    found = read_reference(data_dir / WINDOWS, "w5")
    window, topology, rules, cost = found
    assert (window.num_samples, window.num_layers, window.num_experts) == (256, 24, 32)
    assert window.total_tokens == 476971
    assert (topology.num_shards, topology.shard_size, topology.num_slices) == (8, 1, 2)
    assert rules.token_cap == 16384
    assert cost.omega == Fraction(1, 2)
    assert (cost.attention[0].c1, cost.attention[0].c2) == (1, Fraction(1, 32768))
    assert found.window.origin == "reference window w5"


def test_an_unknown_or_damaged_reference_window_is_refused(
    data_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileFormatError, match="no window 'w7'; there are"):
        read_reference(data_dir / WINDOWS, "w7")
    with pytest.raises(FileFormatError, match=r"windows\.json: no such file"):
        read_reference(tmp_path, "w1")
    (tmp_path / "windows.json").write_text(json.dumps(["w1"]))
    with pytest.raises(FileFormatError, match=r"windows\.json: "):
        read_reference(tmp_path, "w1")
    index = (data_dir / WINDOWS / "windows.json").read_text()
    (tmp_path / "windows.json").write_text(index)
    with pytest.raises(FileFormatError, match=r"w1\.npz: no such file"):
        read_reference(tmp_path, "w1")
    whole = (data_dir / WINDOWS / "w1.npz").read_bytes()
    (tmp_path / "w1.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"w1\.npz: "):
        read_reference(tmp_path, "w1")


def skews(window: Window) -> tuple[float, float]:
    """Hottest over mean: median over layers in all, median over samples."""
    demand = window.demand_NLE
    assert demand is not None
    total = demand.sum(axis=0, dtype=np.int64)
    in_all = np.median(total.max(axis=1) / total.mean(axis=1))
    return float(in_all), float(np.median(demand.max(axis=2) / demand.mean(axis=2)))


def test_new_windows_have_the_statistics_of_the_six(data_dir: Path) -> None:
    given = [read_reference(data_dir / WINDOWS, name).window for name in NAMES]
    drawn = [
        build_reference_like(
            seed=seed, num_samples=640, token_cap=16384, folder=data_dir
        )
        for seed in range(6)
    ]
    lengths, new = (
        np.concatenate([window.length_N for window in windows])
        for windows in (given, drawn)
    )
    shares = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9]  # 480 prompt groups each: 10 % noise
    assert np.quantile(new, shares) == pytest.approx(
        np.quantile(lengths, shares), rel=0.2
    )
    assert new.max() == 16384
    assert intraclass_correlation(np.log(new)) == pytest.approx(
        intraclass_correlation(np.log(lengths)), abs=0.08
    )
    for window, other in zip(given, drawn, strict=True):
        assert skews(other) == pytest.approx(skews(window), rel=0.25)
        assert other.demand_NLE is not None
        assert (other.demand_NLE <= other.length_N[:, None, None]).all()


def test_same_seed_same_window(data_dir: Path) -> None:
    first, again, other = (
        build_reference_like(seed=seed, num_samples=20, token_cap=900, folder=data_dir)
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first.length_N.max() <= 900
    assert first.prompt_group_N is not None
    assert np.bincount(first.prompt_group_N).tolist() == [8, 8, 4]
    assert first.top_k == 4


def test_the_data_folder_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPOPT_DATA", str(tmp_path))
    assert reference.data_dir() == tmp_path
    with pytest.raises(FileFormatError, match="no such file"):
        build_reference_like(seed=0, num_samples=8, token_cap=100)
    monkeypatch.setenv("RPOPT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InstanceError, match="set RPOPT_DATA"):
        reference.data_dir()
