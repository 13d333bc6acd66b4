"""AReaL: micro-batches of one rank, and their number on all ranks.

Signatures of `areal.utils.seqpack.ffd_allocate` and of
`areal.utils.data.allocate_balanced_mbs` and `allocate_balanced_mbs_synced`. AReaL has
dealt the samples to the ranks before, so each rank balances its own micro-batches.
"""

from typing import Any

import numpy as np

from rpopt.stacks.local import agree, pack_rank
from rpopt.stacks.settings import StackSettings
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
    return pack_rank(
        Window(length_N=np.asarray(values)),
        capacity,
        settings,
        min_rows=min_groups or 1,
        row_multiple=n_groups_divisor,
    )


def allocate_balanced_mbs(
    mb_spec: Any, lens: list[int], *, settings: StackSettings
) -> list[list[int]]:
    """Return the micro-batches of one rank under a `MicroBatchSpec`."""
    return _allocate(mb_spec, lens, mb_spec.n_mbs or 1, settings)


def allocate_balanced_mbs_synced(
    mb_spec: Any, lens: list[int], group: Any = None, *, settings: StackSettings
) -> list[list[int]]:
    """Return this rank's micro-batches, as many as on every other rank of the group.

    Raises
    ------
    RpoptError
        On every rank alike, when any rank has no such micro-batches.
    """
    return agree(
        lambda rows: _allocate(mb_spec, lens, rows, settings),
        min_rows=mb_spec.n_mbs or 1,
        group=group,
    )


def _allocate(
    spec: Any, lens: list[int], min_groups: int, settings: StackSettings
) -> list[list[int]]:
    cap, divisor = spec.max_tokens_per_mb, spec.n_mbs_divisor
    return ffd_allocate(lens, cap, min_groups, divisor, settings=settings)
