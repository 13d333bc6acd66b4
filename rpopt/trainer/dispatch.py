"""Token copies to the EP ranks of their experts and back: two all-to-alls.

Copies of one expert arrive ordered by (source rank, copy), under any placement; both
permutations send gradients back by permutation. So where an expert sits changes no sum.

Axis letters: C token copies of this rank, M copies received, D hidden, P EP ranks,
S local slots.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class Dispatch:
    """One exchange of token copies within an EP group.

    Parameters
    ----------
    slot_C
        Slot of every token copy of this rank.
    num_slots
        E.
    group
        The EP group; None when this rank holds every expert.
    """

    def __init__(self, slot_C: Tensor, num_slots: int, group: Group):
        self._group = group
        num_ranks = 1 if group is None else dist.get_world_size(group)
        self._order_C = slot_C.argsort(stable=True)
        sent_PS = slot_C.bincount(minlength=num_slots).view(num_ranks, -1)
        received_PS = sent_PS
        if group is not None:
            received_PS = torch.empty_like(sent_PS)
            dist.all_to_all_single(received_PS, sent_PS, group=group)
        self._sent = sent_PS.sum(dim=1).tolist()
        self._received = received_PS.sum(dim=1).tolist()
        slots = torch.arange(sent_PS.shape[1], device=slot_C.device).repeat(num_ranks)
        slot_M = slots.repeat_interleave(received_PS.flatten())
        self._order_M = slot_M.argsort(stable=True)
        self.received_S = received_PS.sum(dim=0)

    def forward(self, copies_CD: Tensor) -> Tensor:
        """Return the copies for the local slots, ordered by slot, [M, D]."""
        rows = permute(copies_CD, self._order_C)
        if self._group is not None:
            rows = exchange(rows, self._sent, self._received, self._group)
        return permute(rows, self._order_M)

    def back(self, rows_MD: Tensor) -> Tensor:
        """Return the results of this rank's copies in their first order, [C, D]."""
        rows = permute(rows_MD, self._order_M.argsort())
        if self._group is not None:
            rows = exchange(rows, self._received, self._sent, self._group)
        return permute(rows, self._order_C.argsort())


def permute(rows: Tensor, order: Tensor) -> Tensor:
    """Return the rows in another order; the gradient is permuted back, not summed."""
    return _Permute.apply(rows, order)  # type: ignore[no-untyped-call]


def exchange(
    rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    """Send `sent[p]` rows to rank p and return those received, by source rank."""
    return _Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor) -> Tensor:
        ctx.order = order
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.order.argsort()], None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        sent: list[int],
        received: list[int],
        group: dist.ProcessGroup,
    ) -> Tensor:
        ctx.splits = sent, received, group
        return _all_to_all(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received, group = ctx.splits
        return _all_to_all(gradients[0], received, sent, group), None, None, None


def _all_to_all(
    rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(output, rows.contiguous(), received, sent, group=group)
    return output
