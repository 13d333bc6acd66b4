"""verl: planned on the driver, carried to the workers, on the real package."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rpopt.errors import InfeasibleError, InstanceError, MismatchError
from rpopt.stacks import verl
from tests.stacks.cases import check_cells, settings, window
from tests.stacks.packages import real

CAP = 80


@pytest.fixture(autouse=True)
def _verl() -> None:
    real("verl.utils.seqlen_balancing")


def padded(lengths: list[int], width: int = 100) -> Any:
    """A batch as the driver holds it: every sample padded to one width."""
    from verl import DataProto

    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.arange(len(lengths))[:, None].expand(-1, width).contiguous()
    return DataProto.from_dict({"input_ids": ids, "attention_mask": mask})


def workers(batch: Any, dp: int, cap: int = CAP, **more: Any) -> list[list[list[int]]]:
    """Original sample ids by rank and micro-batch, after verl's own even split."""
    cells = []
    for part in batch.chunk(dp):
        found, _ = verl.rearrange_micro_batches(
            part.batch, cap, settings=settings(dp), **more
        )
        cells.append([micro["input_ids"][:, 0].tolist() for micro in found])
    return cells


@pytest.mark.parametrize("routes", [True, False])
@pytest.mark.parametrize("multiple", [None, 2])
def test_the_workers_run_the_drivers_plan(routes: bool, multiple: int | None) -> None:
    routed = window(3, 24)
    lengths = routed.length_N.tolist()
    batch, metrics = padded(lengths), dict[str, Any]()
    verl.balance_batch(
        batch,
        metrics,
        max_token_len=CAP,
        settings=settings(4),
        num_batches_divided_by=multiple,
        window=routed if routes else None,
    )
    cells = workers(batch, 4)
    check_cells(cells, lengths, CAP, row_multiple=multiple or 1)
    assert {sum(map(len, rows)) for rows in cells} == {6}
    assert metrics["global_seqlen/micro_batches"] == len(cells[0])
    assert metrics["global_seqlen/planned_j"] >= 1


def test_verl_restores_the_order_from_the_positions() -> None:
    from verl.utils.seqlen_balancing import restore_dynamic_batch

    batch = padded([30, 20, 40, 10, 5, 60]).batch
    micro, positions = verl.rearrange_micro_batches(batch, CAP, settings=settings())
    outputs = torch.cat([part["input_ids"] for part in micro])
    restored = restore_dynamic_batch(outputs, positions)
    assert torch.equal(restored, batch["input_ids"])


def test_each_mini_batch_keeps_its_samples() -> None:
    lengths = window(4, 16).length_N.tolist()
    batch = padded(lengths)
    verl.balance_batch(
        batch, {}, "x", True, max_token_len=CAP, settings=settings(), mini_batch_size=8
    )
    for part in batch.chunk(2):
        ids = part.batch["input_ids"][:, 0].tolist()
        assert all(i < 8 for i in ids[:4])
        assert all(i >= 8 for i in ids[4:])


def test_groups_of_one_prompt_stay_together() -> None:
    lengths = [30, 30, 5, 5, 20, 20, 9, 9, 12, 12, 8, 8]
    batch = padded(lengths)
    verl.balance_batch(
        batch, {}, max_token_len=CAP, settings=settings(), force_group_size=2
    )
    cells = workers(batch, 2)
    check_cells(cells, lengths, CAP)
    for cell in (cell for rows in cells for cell in rows):
        assert all({2 * (i // 2), 2 * (i // 2) + 1} <= set(cell) for i in cell)
    alone, _ = verl.rearrange_micro_batches(
        padded(lengths).batch, 64, force_group_size=2, settings=settings()
    )
    for micro in alone:
        ids = micro["input_ids"][:, 0].tolist()
        assert ids[0::2] == [i - 1 for i in ids[1::2]]


def test_padded_width_above_the_cap_with_real_lengths_below() -> None:
    lengths = [30, 40, 20, 60]
    found, _ = verl.rearrange_micro_batches(
        padded(lengths, width=400).batch, CAP, settings=settings()
    )
    assert len(found) == 2


def test_nested_batches() -> None:
    from tensordict import TensorDict

    ids = torch.nested.as_nested_tensor(
        [torch.full((n,), n) for n in (30, 40, 20, 60)], layout=torch.jagged
    )
    batch = TensorDict({"input_ids": ids}, batch_size=[4])
    found, positions = verl.rearrange_micro_batches(batch, CAP, settings=settings())
    check_cells([positions], [30, 40, 20, 60], CAP)
    assert [len(m["input_ids"].unbind()) for m in found] == [len(p) for p in positions]


def test_a_tight_cap_takes_more_rows_rather_than_uneven_ranks() -> None:
    lengths = [60, 40, 40, 40, 10, 10, 10, 10, 10, 10]
    batch = padded(lengths)
    verl.balance_batch(batch, {}, max_token_len=CAP, settings=settings())
    check_cells(workers(batch, 2), lengths, CAP)


def test_clear_errors() -> None:
    def balance(lengths: list[int], **more: Any) -> None:
        more = {"max_token_len": CAP, "settings": settings(2)} | more
        verl.balance_batch(padded(lengths), {}, **more)

    with pytest.raises(InstanceError, match="5 samples .* 2 DP ranks"):
        balance([5] * 5)
    with pytest.raises(InfeasibleError, match="81"):
        balance([81, 3, 3, 3])
    with pytest.raises(InstanceError, match="give whole groups"):
        balance([5] * 4, force_group_size=3)
    with pytest.raises(InstanceError, match="mini_batch_size"):
        balance([5] * 4, keep_minibatch=True)
    batch = padded([40, 40, 40, 40])
    verl.balance_batch(batch, {}, max_token_len=CAP, settings=settings())
    with pytest.raises(MismatchError, match="smallest cap"):
        workers(batch, 2, cap=70)
    with pytest.raises(MismatchError, match="1 micro-batches here, .* multiple of 2"):
        workers(batch, 2, num_batches_divided_by=2)


def test_a_sample_that_fills_the_plans_cap_is_above_another_passs() -> None:
    batch = padded([75, 70, 75, 70])
    verl.balance_batch(batch, {}, max_token_len=CAP, settings=settings())
    with pytest.raises(MismatchError, match="75 tokens here, more than .* = 72"):
        workers(batch, 2, cap=72)


@pytest.mark.dist
def test_ranks_that_pack_for_themselves_agree(tmp_path: Path) -> None:
    mp.spawn(_rank, args=(str(tmp_path / "store"),), nprocs=2, join=True)


def _rank(rank: int, store: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    try:
        lengths = [70, 70, 70] if rank == 0 else [5, 6, 7, 8]
        found, positions = verl.rearrange_micro_batches(
            padded(lengths).batch, CAP, dp_group=dist.group.WORLD, settings=settings()
        )
        assert len(found) == 3
        check_cells([positions], lengths, CAP)
        few = [5] if rank else lengths  # rank 1 cannot fill 3 micro-batches
        with pytest.raises(InfeasibleError, match="rank 1 of 2"):
            verl.rearrange_micro_batches(
                padded(few).batch, CAP, dist.group.WORLD, settings=settings()
            )
        batch = padded([70, 5, 70, 5, 70, 5, 70, 5])
        verl.balance_batch(batch, {}, max_token_len=CAP, settings=settings())
        part = batch.chunk(2)[rank].batch
        if rank:  # a worker that lost the samples of its last micro-batch
            part = part[part[verl.ROW_KEY] < part[verl.ROW_KEY].max()]
        with pytest.raises(InfeasibleError, match=r"rank 1 of 2.*the plan has"):
            verl.rearrange_micro_batches(
                part, CAP, dist.group.WORLD, settings=settings()
            )
    finally:
        dist.destroy_process_group()
