"""Process groups: every rank is a DP rank, consecutive ranks share the experts.

The groups are those of `rpopt.Topology(dp=world_size, ep=ep)`: shard s holds ranks
[s ep, (s + 1) ep); ranks of equal EP rank hold the same experts (an EDP group).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from rpopt.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """What one process knows about the others.

    Parameters
    ----------
    topology
        DP and EP sizes.
    rank
        This process among all.
    world, ep_group, edp_group
        All ranks, those of one expert all-to-all, and those that hold the same
        experts; None where this process is alone.
    """

    topology: Topology
    rank: int
    world: dist.ProcessGroup | None = None
    ep_group: dist.ProcessGroup | None = None
    edp_group: dist.ProcessGroup | None = None

    @property
    def ep_rank(self) -> int:
        """The place of this process among the EP ranks."""
        return self.rank % self.topology.ep


def parallel(ep: int) -> Parallel:
    """Return the groups of this process; alone when torch.distributed is not set up.

    Every process calls it, at the same time.

    Raises
    ------
    InstanceError
        When the number of processes is not a multiple of `ep`.
    """
    if not dist.is_initialized():
        return Parallel(topology=Topology(dp=1, ep=ep), rank=0)
    size, rank = dist.get_world_size(), dist.get_rank()
    topology = Topology(dp=size, ep=ep)
    shards = [list(range(first, first + ep)) for first in range(0, size, ep)]
    peers = [list(range(first, size, ep)) for first in range(ep)]
    return Parallel(
        topology=topology,
        rank=rank,
        world=dist.group.WORLD if size > 1 else None,
        ep_group=_own_group(shards, rank),
        edp_group=_own_group(peers, rank),
    )


def sum_over(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """Sum tensors over a group in one collective, in place."""
    if group is None:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, part in zip(tensors, torch.split(flat, sizes), strict=True):
        tensor.copy_(part.view_as(tensor))


def _own_group(ranks_of: list[list[int]], rank: int) -> dist.ProcessGroup | None:
    """Create all groups, as torch wants of every process, and return the own one."""
    groups = [dist.new_group(ranks) for ranks in ranks_of]
    (own,) = (i for i, ranks in enumerate(ranks_of) if rank in ranks)
    return groups[own] if len(ranks_of[own]) > 1 else None
