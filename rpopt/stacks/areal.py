"""AReaL: micro-batches of one rank, and their number on all ranks.

Signatures of `areal.utils.seqpack.ffd_allocate` and of
`areal.utils.data.allocate_balanced_mbs` and `allocate_balanced_mbs_synced`. AReaL has
dealt the samples to the ranks before, so each rank balances its own micro-batches.
Every rank orders them from large to small: ranks meet in every micro-batch, and large
ones then meet large ones.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from rpopt.errors import InfeasibleError, RpoptError
from rpopt.stacks.settings import ONE_RANK, StackSettings, plan_cells
from rpopt.window import Window


def ffd_allocate(
    values: list[int],
    capacity: int,
    min_groups: int,
    n_groups_divisor: int = 1,
    *,
    settings: StackSettings,
) -> list[list[int]]:
    """Return groups of indices whose values keep the capacity; none is empty.

    Parameters
    ----------
    values
        Tokens of each sample.
    capacity
        Tokens that a group may hold.
    min_groups, n_groups_divisor
        At least this many groups, and a multiple of that.
    settings
        What AReaL does not know; its topology is not used here.

    Raises
    ------
    RpoptError
        For a value above the capacity, or fewer values than groups.
    """
    settings.require_every_sample("AReaL")
    alone = replace(
        settings, topology=ONE_RANK, current=None, row_order="largest_first"
    )
    rules = alone.rules(capacity, row_multiple=n_groups_divisor or 1)
    window = Window(length_N=np.asarray(values))
    return plan_cells(window, rules, alone, min_rows=min_groups or 1)[1][0]


def allocate_balanced_mbs(
    mb_spec: Any, lens: list[int], *, settings: StackSettings
) -> list[list[int]]:
    """Return the micro-batches of one rank under a `MicroBatchSpec`."""
    return ffd_allocate(
        lens,
        mb_spec.max_tokens_per_mb,
        mb_spec.n_mbs,
        mb_spec.n_mbs_divisor,
        settings=settings,
    )


def allocate_balanced_mbs_synced(
    mb_spec: Any, lens: list[int], group: Any = None, *, settings: StackSettings
) -> list[list[int]]:
    """Return this rank's micro-batches, as many as on every other rank of the group.

    Raises
    ------
    RpoptError
        On every rank alike, when any rank has no such micro-batches: a rank that
        raised alone would leave the others waiting.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return allocate_balanced_mbs(mb_spec, lens, settings=settings)
    spec = mb_spec
    while True:
        answers: list[Any] = [None] * dist.get_world_size(group)
        mine = _try(spec, lens, settings)
        dist.all_gather_object(answers, _summary(mine), group=group)
        failed = {rank: text for rank, text in enumerate(answers) if _is_text(text)}
        if failed:
            rank, text = next(iter(failed.items()))
            raise InfeasibleError(
                f"rank {rank} of {len(answers)} has no {spec.n_mbs} or more"
                f" micro-batches: {text}"
            )
        if len(set(answers)) == 1:
            assert isinstance(mine, list)
            return mine
        spec = type(spec).new(spec, n_mbs=max(answers))


def _try(
    spec: Any, lens: list[int], settings: StackSettings
) -> list[list[int]] | RpoptError:
    try:
        return allocate_balanced_mbs(spec, lens, settings=settings)
    except RpoptError as error:
        return error


def _summary(answer: list[list[int]] | RpoptError) -> int | str:
    return str(answer) if isinstance(answer, RpoptError) else len(answer)


def _is_text(answer: Any) -> bool:
    return isinstance(answer, str)
