"""Descent for the covariance form: the best swap of two experts until none helps.

Axis letters: L MoE layers, E and F experts, P EP ranks.
"""

import numpy as np

from rpopt.placement.instance_covariance import CovarianceInstance
from rpopt.plans import Placement
from rpopt.records import Int64Array


def place_covariance(instance: CovarianceInstance, start: Placement) -> Placement:
    """Return a placement that no swap of two experts improves, from a start."""
    rank_LE = start.rank_LE
    for moment_EF, rank_E in zip(instance.moment_LEF, rank_LE, strict=True):
        _descend(moment_EF, rank_E, instance.num_ep_ranks)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks, start)


def _descend(moment_EF: Int64Array, rank_E: Int64Array, num_ranks: int) -> None:
    """Swap in place; every swap lowers a whole number, so this ends."""
    own_E = np.diag(moment_EF)
    while True:
        with_EP = moment_EF @ (rank_E[:, None] == np.arange(num_ranks))
        there_EF = with_EP[:, rank_E]  # expert e among the companions of f
        gain_EF = there_EF - np.diag(there_EF)[:, None]
        change_EF = gain_EF + gain_EF.T + own_E[:, None] + own_E - 2 * moment_EF
        change_EF[rank_E[:, None] == rank_E] = 0
        a, b = np.unravel_index(int(change_EF.argmin()), change_EF.shape)
        if change_EF[a, b] >= 0:
            return
        rank_E[a], rank_E[b] = rank_E[b], rank_E[a]
