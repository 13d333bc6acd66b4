"""The slime schedule: its invariants, and cases that users have met."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as fast
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, InstanceError, MismatchError
from rpopt.stacks import StackSettings
from rpopt.stacks.slime import Schedule, build_dp_schedule
from rpopt.window import Window
from tests.stacks.cases import check_cells, settings, when_filled
from tests.stacks.cases import window as random_window


def schedule(
    lengths: list[int],
    *,
    cap: int = 64,
    dp: int = 2,
    cp: int = 1,
    vpp: int | None = None,
    group: int = 2,
    rollouts: list[int] | None = None,
    per_step: int | None = None,
    micro_batch_size: int | None = None,
    chosen: StackSettings | None = None,
    window: Window | None = None,
) -> Schedule:
    args = SimpleNamespace(
        use_dynamic_batch_size=micro_batch_size is None,
        max_tokens_per_gpu=cap,
        micro_batch_size=micro_batch_size,
    )
    ids = list(range(len(lengths))) if rollouts is None else rollouts
    config = {
        "dp_size": dp,
        "cp_size": cp,
        "vpp_size": vpp,
        "microbatch_group_size_per_vp_stage": group,
    }
    return build_dp_schedule(
        args,
        config,
        lengths,
        global_batch_size=per_step or len(set(ids)),
        rollout_indices=ids,
        settings=chosen or settings(dp, 2, cp=cp),
        window=window,
    )


def check(
    found: Schedule, lengths: list[int], cap: int, row_multiple: int = 1
) -> list[list[list[list[int]]]]:
    """Check slime's invariants and return the cells of each step, by rank and row."""
    partitions, micro_batches, rows, _ = found
    for samples, batches in zip(partitions, micro_batches, strict=True):
        assert sum(batches, []) == list(range(len(samples)))
        assert len(batches) == sum(rows)
    kept = sorted(sum(partitions, []))
    assert len(set(kept)) == len(kept)
    steps, first = [], 0
    for count in rows:
        steps.append(
            [
                [[samples[i] for i in cell] for cell in batches[first : first + count]]
                for samples, batches in zip(partitions, micro_batches, strict=True)
            ]
        )
        first += count
    for cells in steps:
        ids = sorted(i for rank in cells for cell in rank for i in cell)
        number = {sample: k for k, sample in enumerate(ids)}
        local = [[[number[i] for i in cell] for cell in rank] for rank in cells]
        check_cells(
            local, [lengths[i] for i in ids], cap, row_multiple=row_multiple, alone=True
        )
    return steps


@given(
    lengths=st.lists(st.integers(1, 90), min_size=8, max_size=24),
    vpp=st.sampled_from((None, 1, 2)),
    cp=st.sampled_from((1, 2)),
)
@fast(deadline=None, max_examples=25)
def test_invariants(lengths: list[int], vpp: int | None, cp: int) -> None:
    found = when_filled(lambda: schedule(lengths, cap=64, vpp=vpp, cp=cp))
    check(found, lengths, 64 * cp, row_multiple=2 if vpp == 2 else 1)
    assert found[3] == [len(lengths)]
    assert sorted(sum(found[0], [])) == list(range(len(lengths)))


def test_one_sample_above_the_cap() -> None:
    lengths = [100, 20, 20, 20, 20, 20]
    steps = check(schedule(lengths, cap=64), lengths, 64)
    assert [0] in [cell for rank in steps[0] for cell in rank]
    with pytest.raises(InfeasibleError, match="100"):
        schedule(lengths, cap=64, chosen=settings(oversize="error"))
    dropped = schedule(lengths, cap=64, chosen=settings(oversize="drop"))
    assert sorted(sum(dropped[0], [])) == [1, 2, 3, 4, 5]


def test_a_rollout_stays_in_one_step_and_trailing_rollouts_are_left_out() -> None:
    rollouts = [0, 1, 0, 2, 1, 3, 2, 3, 4]
    lengths = [10 + i for i in range(9)]
    found = schedule(lengths, rollouts=rollouts, per_step=2)
    steps = check(found, lengths, 64)
    of_step = [{rollouts[i] for r in s for cell in r for i in cell} for s in steps]
    assert of_step == [{0, 1}, {2, 3}]
    assert found[3] == [2, 2]
    with pytest.raises(InstanceError, match="fill no step"):
        schedule(lengths, rollouts=rollouts, per_step=6)


def test_fixed_micro_batch_size() -> None:
    lengths = [50, 1, 30, 2, 40, 3, 20, 4]
    found = schedule(lengths, micro_batch_size=2)
    assert all(len(cell) == 2 for rank in found[1] for cell in rank)
    assert found[2] == [2]


def test_routes_come_with_a_window_and_every_plan_is_reported() -> None:
    routed, plans = random_window(0, 12), list[Any]()
    lengths = routed.length_N.tolist()
    more: dict[str, Any] = {"chosen": settings(on_plan=plans.append), "window": routed}
    found = schedule(lengths, per_step=6, **more)
    check(found, lengths, 64)
    assert [plan.placement is not None for plan in plans] == [True, True]
    with pytest.raises(MismatchError, match="sample 0 has"):
        schedule([lengths[0] + 1, *lengths[1:]], **more)
    with pytest.raises(MismatchError, match="packs 11 samples"):
        schedule(lengths[1:], **more)


def test_other_sizes_than_the_settings_are_refused() -> None:
    with pytest.raises(MismatchError, match="dp = 4"):
        schedule([5] * 8, dp=4, chosen=settings(2))
