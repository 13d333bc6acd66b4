"""Real expert loads: DeepSeek (256 experts), OLMoE (64) and Mixtral (8)."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from rpopt.placement.bounds import decisive_experts, peak_bounds
from rpopt.placement.certificates import certify_placement, recheck
from rpopt.placement.heuristics import eplb, identity, lpt, place
from rpopt.placement.instance import PlacementInstance, evaluate
from rpopt.plans import Placement
from rpopt.records import Int64Array


def deepseek(data_dir: Path, recording: str) -> Int64Array:
    folder = data_dir / "moe-load-deepseek-srtslurm"
    with gzip.open(folder / f"deepseek_fp4_{recording}.csv.gz", "rt") as file:
        return np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1)[:, 1:]


def routed_counts(data_dir: Path, model: str, num_experts: int) -> Int64Array:
    path = data_dir / "moe-load-olmoe-mixtral" / "expert_counts.csv"
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if model in row["model"]]
    return np.array([[int(row[f"e{e}"]) for e in range(num_experts)] for row in rows])


def gaps(instance: PlacementInstance, placement: Placement) -> Int64Array:
    bound_L = np.array([bound.value for bound in peak_bounds(instance)])
    return evaluate(instance, placement).peak_L / bound_L - 1


@pytest.mark.parametrize("recording", ["1k1k", "8k1k"])
@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_deepseek_layers_meet_the_bound(
    data_dir: Path, recording: str, ranks: int
) -> None:
    load_LE = deepseek(data_dir, recording)
    instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=ranks)
    assert load_LE.shape == (58, 256)
    placement = place(instance)
    gap_L = gaps(instance, placement)
    assert gap_L.max() < 2e-5
    assert (gap_L == 0).mean() >= 0.75
    assert (gap_L <= gaps(instance, eplb(instance))).all()
    for certificate in certify_placement(instance, placement)[:3]:
        assert recheck(certificate, instance) == certificate.lower


def test_deepseek_hot_experts_are_named(data_dir: Path) -> None:
    load_LE = deepseek(data_dir, "1k1k")
    instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=32)
    found = decisive_experts(instance)
    assert len(found) == 55
    assert all(load_LE[f.layer].argmax() == f.expert for f in found)


def test_moves_from_identity_are_fewer(data_dir: Path) -> None:
    load_LE = deepseek(data_dir, "1k1k")
    instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=16)
    current = identity(instance)
    found = place(instance, current=current)
    assert gaps(instance, found).max() < 2e-5
    assert (
        found.num_moved(current).mean() < 100 < lpt(instance).num_moved(current).min()
    )


def test_a_deployed_placement_is_a_permutation(data_dir: Path) -> None:
    path = data_dir / "moe-placement-omniinfer"
    with gzip.open(path / "dsv3_prefill_16ranks_expert_to_rank.csv.gz", "rt") as file:
        rank_LE = np.loadtxt(file, dtype=np.int64, delimiter=",", skiprows=1)[:, 1:]
    deployed = Placement.from_ranks(rank_LE, 16)
    load_LE = deepseek(data_dir, "1k1k")
    instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=16)
    found = place(instance, current=deployed, effort=0)
    peak_L = evaluate(instance, found).peak_L
    assert (peak_L <= evaluate(instance, deployed).peak_L).all()


@pytest.mark.parametrize(("ranks", "largest"), [(4, 1e-9), (8, 5e-5), (16, 0.004)])
def test_olmoe_layers_come_close(data_dir: Path, ranks: int, largest: float) -> None:
    load_LE = routed_counts(data_dir, "OLMoE", 64)
    instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=ranks)
    assert load_LE.shape == (24, 64)
    gap_L = gaps(instance, place(instance))
    assert gap_L.max() <= largest
    assert gap_L.mean() < gaps(instance, eplb(instance)).mean()


def test_mixtral_is_solved(data_dir: Path) -> None:
    load_LE = routed_counts(data_dir, "Mixtral", 8)
    for ranks in (2, 4, 8):
        instance = PlacementInstance(load_LE=load_LE, num_ep_ranks=ranks)
        gap_L = gaps(instance, place(instance))
        assert (gap_L == 0).all() if ranks >= 4 else gap_L.max() < 0.02
