"""Cases that users of the stacks have met, each on every drop-in that it concerns.

Reported as issues of verl (6176, 6735, 7553, 1617, 4152), slime (1951, 2065), NeMo-RL
(748), prime-rl (1542), EasyR1 (11012) and Trinity-RFT (398).
"""

from collections.abc import Callable
from typing import Any

import pytest

from rpopt.errors import InfeasibleError, InstanceError, RpoptError
from rpopt.stacks.areal import ffd_allocate
from rpopt.stacks.megatron import packing_scheduler
from rpopt.stacks.nemo_rl import RpoptPacker
from tests.stacks import test_prime_rl, test_slime, test_verl
from tests.stacks.cases import check_cells, settings
from tests.stacks.packages import real
from tests.stacks.test_packers import Base

CAP = 64
Cells = list[list[list[int]]]


def slime(lengths: list[int], multiple: int) -> Cells:
    vpp = 2 if multiple > 1 else None
    found = test_slime.schedule(lengths, cap=CAP, vpp=vpp, group=multiple)
    return test_slime.check(found, lengths, CAP)[0]


def verl(lengths: list[int], multiple: int) -> Cells:
    from rpopt.stacks import verl

    real("verl.utils.seqlen_balancing")
    batch, chosen = test_verl.padded(lengths), settings(2)
    more: dict[str, Any] = {"num_batches_divided_by": multiple, "settings": chosen}
    verl.balance_batch(batch, {}, max_token_len=CAP, **more)
    return test_verl.workers(batch, 2, CAP, num_batches_divided_by=multiple)


def nemo_rl(lengths: list[int], multiple: int) -> Cells:
    packer = RpoptPacker(CAP, False, 2 * multiple, 2, settings=settings(2))
    bins = packer.pack(lengths)
    return [bins[0::2], bins[1::2]]


def megatron(lengths: list[int], multiple: int) -> Cells:
    scheduler = packing_scheduler(Base, settings(2))(CAP, 1, 2, multiple)
    groups = scheduler.get_groups_and_subsamples(list(enumerate(lengths)))
    return [[row[rank] for row in groups] for rank in range(2)]


def prime_rl(lengths: list[int], multiple: int) -> Cells:
    with pytest.MonkeyPatch.context() as patch:
        test_prime_rl.install(patch)
        rollouts = [test_prime_rl.Rollout(i, n) for i, n in enumerate(lengths)]
        found = test_prime_rl.batches(rollouts)
    return [[micro.ids for micro in rows] for rows in found]


def areal(lengths: list[int], multiple: int) -> Cells:
    return [ffd_allocate(lengths, CAP, multiple, multiple, settings=settings())]


STACKS: dict[str, Callable[[list[int], int], Cells]] = {
    f.__name__: f for f in (slime, verl, nemo_rl, megatron, prime_rl, areal)
}
"""Cells of two ranks (AReaL: one) under a cap of 64, rows a multiple of a number."""


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stack", names or tuple(STACKS))


@on()
def test_counts_are_equal_where_ranks_packed_alone_would_differ(stack: str) -> None:
    """Unequal numbers of micro-batches hang: dealt in halves, these need 4 and 1."""
    lengths = [60, 60, 60, 60, 5, 5, 5, 5]
    check_cells(STACKS[stack](lengths, 1), lengths, CAP)


@on()
def test_balancing_work_never_breaks_the_cap(stack: str) -> None:
    """A long sample is as much work as many short ones, in far more tokens: parts of
    equal L^2 would hold 64 and 124 tokens."""
    lengths = [64] + [4] * 31
    check_cells(STACKS[stack](lengths, 1), lengths, CAP)


@on("verl", "nemo_rl", "megatron", "areal")
def test_a_sample_longer_than_the_cap_is_named(stack: str) -> None:
    with pytest.raises(InfeasibleError, match="100"):
        STACKS[stack]([20, 100, 20, 20], 1)


@on("slime", "prime_rl")
def test_a_sample_longer_than_the_cap_sits_alone_where_the_stack_wants_it(
    stack: str,
) -> None:
    """prime-rl cuts it to the cap first."""
    cells = STACKS[stack]([20, 100, 20, 20], 1)
    assert [1] in [cell for rows in cells for cell in rows]


@on("slime", "verl", "nemo_rl", "megatron", "areal")
def test_fewer_samples_than_ranks_times_virtual_pipeline(stack: str) -> None:
    words = r"2 samples cannot fill (4|3) cells"
    with pytest.raises(InfeasibleError, match=words):
        STACKS[stack]([5, 5], 3 if stack == "areal" else 2)


@on("slime", "verl", "nemo_rl", "megatron", "areal")
def test_the_count_is_a_multiple_and_no_micro_batch_is_empty(stack: str) -> None:
    """A number of micro-batches that is raised must leave none of them empty."""
    lengths = [60, 30, 30, 8, 8, 8, 8, 8]
    cells = STACKS[stack](lengths, 4)
    check_cells(cells, lengths, CAP, row_multiple=4)


@on("slime", "nemo_rl", "megatron", "prime_rl")
def test_a_batch_that_dp_does_not_divide(stack: str) -> None:
    lengths = [20] * 7
    check_cells(STACKS[stack](lengths, 1), lengths, CAP)


@on("verl")
def test_a_batch_that_dp_does_not_divide_is_refused_by_even_splits(stack: str) -> None:
    with pytest.raises(InstanceError, match="7 samples .* 2 DP ranks"):
        STACKS[stack]([20] * 7, 1)


@on("verl")
def test_real_lengths_count_where_the_padded_width_is_above_the_cap(stack: str) -> None:
    """Every batch of this file is padded to 100 columns, the cap is 64."""
    lengths = [30, 40, 20, 60]
    cells = STACKS[stack](lengths, 1)
    assert test_verl.padded(lengths).batch["input_ids"].shape[1] > CAP
    check_cells(cells, lengths, CAP)


@on()
def test_an_error_is_one_of_ours_and_short(stack: str) -> None:
    """No assertion of a stack or of NumPy for a batch without samples."""
    with pytest.raises(RpoptError) as caught:
        STACKS[stack]([], 1)
    assert "\n" not in str(caught.value)
