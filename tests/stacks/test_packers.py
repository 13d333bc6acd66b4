"""NeMo-RL's packer, Megatron-Core's scheduler and AReaL's allocators."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import settings as fast
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, InstanceError, MismatchError
from rpopt.stacks.areal import (
    allocate_balanced_mbs,
    allocate_balanced_mbs_synced,
    ffd_allocate,
)
from rpopt.stacks.megatron import packing_scheduler
from rpopt.stacks.nemo_rl import RpoptPacker
from rpopt.stop import MaxRuntime
from tests.stacks.cases import check_cells, settings, when_filled, window


@given(
    lengths=st.lists(st.integers(1, 64), min_size=8, max_size=24),
    min_bins=st.integers(1, 5),
)
@fast(deadline=None, max_examples=25)
def test_nemo_rl_bins(lengths: list[int], min_bins: int) -> None:
    packer = RpoptPacker(64, False, min_bins, 2, settings=settings())
    bins = when_filled(lambda: packer.pack(lengths))
    assert len(bins) >= min_bins
    check_cells([bins[shard::2] for shard in range(2)], lengths, 64)


def test_nemo_rl_takes_routes_piece_by_piece() -> None:
    plans: list[Any] = []
    packer = RpoptPacker(128, False, 2, 2, settings=settings(on_plan=plans.append))
    routed = window(0, 16)
    padded = [-(-length // 8) * 8 for length in routed.length_N.tolist()]
    packer.expect(routed)
    for first in (0, 8):
        bins = packer.pack(padded[first : first + 8])
        check_cells([bins[0::2], bins[1::2]], padded[first : first + 8], 128)
    assert all(plan.placement is not None for plan in plans)
    with pytest.raises(MismatchError, match="call expect"):
        packer.pack(padded[:8])


def test_nemo_rl_errors() -> None:
    packer = RpoptPacker(64, False, 2, 2, settings=settings())
    with pytest.raises(InfeasibleError, match="65"):
        packer.pack([65, 3])
    with pytest.raises(InfeasibleError, match="1 samples cannot fill 2 cells"):
        packer.pack([3])
    with pytest.raises(InstanceError, match="NeMo-RL expects back"):
        RpoptPacker(64, False, 2, 2, settings=settings(oversize="drop"))


class Base:
    """Construction of Megatron-LM d98e8a64's `BasePackingScheduler`."""

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None,
    ) -> None:
        self.max_seqlen_per_dp_cp_rank = max_seqlen_per_dp_cp_rank
        self.cp_size, self.dp_size = cp_size, dp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage


@pytest.mark.parametrize("group", [None, 2])
def test_megatron_groups(group: int | None) -> None:
    routed = window(1, 24)
    lengths = routed.length_N.tolist()
    cls = packing_scheduler(Base, settings(cp=2))
    scheduler = cls(32, 2, 2, group)
    scheduler.window = routed
    groups = scheduler.get_groups_and_subsamples(list(enumerate(lengths)))
    for row in groups:
        assert row[0] == row[1]  # the CP ranks of one DP rank
        assert row[2] == row[3]
    cells = [[row[2 * rank] for row in groups] for rank in range(2)]
    check_cells(cells, lengths, 64, row_multiple=group or 1)
    again = cls(32, 2, 2, group)
    again.window = routed
    assert again.get_groups_and_subsamples(list(enumerate(lengths))) == groups


def test_megatron_caps_the_samples_of_a_pack_where_its_scheduler_does() -> None:
    scheduler = packing_scheduler(Base, settings())(64, 1, 2, None)
    scheduler.max_num_seqs = 2
    groups = scheduler.get_groups_and_subsamples(list(enumerate([5] * 12)))
    assert len(groups) == 3
    assert all(len(cell) == 2 for row in groups for cell in row)


def test_megatron_plans_in_every_process_so_the_clock_may_not_decide() -> None:
    with pytest.raises(InstanceError, match="MaxSweeps"):
        packing_scheduler(Base, settings(stop=MaxRuntime(1.0)))


@dataclass(frozen=True)
class Spec:
    """The fields of AReaL cbff54d6's `MicroBatchSpec` that are read here."""

    n_mbs: int | None = 1
    max_tokens_per_mb: int = 64
    n_mbs_divisor: int = 1

    @classmethod
    def new(cls, spec: "Spec", **more: Any) -> "Spec":
        return replace(spec, **more)


@given(
    lengths=st.lists(st.integers(1, 64), min_size=6, max_size=20),
    min_groups=st.integers(1, 4),
    divisor=st.integers(1, 3),
)
@fast(deadline=None, max_examples=25)
def test_areal_groups(lengths: list[int], min_groups: int, divisor: int) -> None:
    groups = when_filled(
        lambda: ffd_allocate(lengths, 64, min_groups, divisor, settings=settings())
    )
    assert len(groups) >= min_groups
    check_cells([groups], lengths, 64, row_multiple=divisor)


def test_areal_refuses_what_areal_refuses() -> None:
    with pytest.raises(InfeasibleError, match="65"):
        ffd_allocate([65], 64, 1, settings=settings())
    with pytest.raises(InfeasibleError, match="2 samples cannot fill 3 cells"):
        ffd_allocate([5, 5], 64, 3, settings=settings())


def test_areal_alone_needs_no_group() -> None:
    lens = [30] * 6
    synced = allocate_balanced_mbs_synced(Spec(), lens, settings=settings())
    assert synced == allocate_balanced_mbs(Spec(), lens, settings=settings())


@pytest.mark.dist
def test_areal_counts_are_equal_on_all_ranks(tmp_path: Path) -> None:
    """Unequal counts hang; so does an empty part after the counts were raised."""
    mp.spawn(_areal_rank, args=(str(tmp_path / "store"),), nprocs=2, join=True)


def _areal_rank(rank: int, store: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    try:
        lens = [60, 60, 60, 60] if rank == 0 else [5, 6, 7, 8, 9]
        groups = allocate_balanced_mbs_synced(Spec(), lens, settings=settings())
        assert len(groups) == 4
        check_cells([groups], lens, 64)
        few = [60, 60, 60] if rank == 0 else [5]  # rank 1 cannot fill 3 micro-batches
        with pytest.raises(InfeasibleError, match="rank 1 of 2"):
            allocate_balanced_mbs_synced(Spec(), few, settings=settings())
    finally:
        dist.destroy_process_group()
