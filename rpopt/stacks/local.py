"""Micro-batches of one rank's own samples, and their number agreed among ranks.

For stacks that have dealt samples to ranks before they pack. Every rank orders its
micro-batches from large to small: ranks meet in every one, and large then meets large.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rpopt.errors import InfeasibleError, RpoptError
from rpopt.stacks.settings import StackSettings, plan_cells
from rpopt.topology import Topology
from rpopt.window import Window

ONE_RANK = Topology(dp=1, ep=1)
Groups = list[list[int]]


def pack_rank(
    window: Window,
    token_cap: int,
    settings: StackSettings,
    *,
    min_rows: int = 1,
    row_multiple: int = 1,
) -> Groups:
    """Return micro-batches of one rank: at least `min_rows`, none empty.

    Raises
    ------
    RpoptError
        For a sample above the cap, or fewer samples than micro-batches.
    """
    alone = replace(
        settings, topology=ONE_RANK, current=None, row_order="largest_first"
    )
    rules = alone.rules(token_cap, row_multiple=row_multiple)
    return plan_cells(window, rules, alone, min_rows=min_rows)[1][0]


def agree(pack: Callable[[int], Groups], *, min_rows: int, group: Any) -> Groups:
    """Return what `pack(rows)` gives, as many groups as on every other rank.

    Parameters
    ----------
    pack
        Returns this rank's groups, at least as many as it is told.
    min_rows
        How many to start with.
    group
        The process group that must agree; None for all processes. Without an
        initialised torch.distributed there is nobody to agree with.

    Raises
    ------
    InfeasibleError
        On every rank alike when any rank finds no groups: one that raised alone would
        leave the others waiting in their next collective.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return pack(min_rows)
    rows = min_rows
    while True:
        mine = _attempt(pack, rows)
        answers: list[Any] = [None] * dist.get_world_size(group)
        count = mine if isinstance(mine, str) else len(mine)
        dist.all_gather_object(answers, count, group=group)
        for rank, answer in enumerate(answers):
            if isinstance(answer, str):
                raise InfeasibleError(
                    f"rank {rank} of {len(answers)} cannot form {rows} or more"
                    f" micro-batches: {answer}"
                )
        if len(set(answers)) == 1:
            assert isinstance(mine, list)
            return mine
        rows = max(answers)


def _attempt(pack: Callable[[int], Groups], rows: int) -> Groups | str:
    try:
        return pack(rows)
    except RpoptError as error:
        return str(error)
