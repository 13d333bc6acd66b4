"""The covariance form of placement: experts that fire together go apart.

With x_q the 0/1 vector of the experts on EP rank q and D the demand of a layer, one row
per sample, the sum over samples and ranks of load squared is the sum over q of
x_q' Q x_q with Q = D' D, the second moments. Q is positive semidefinite, so this is a
convex quadratic problem; it needs no groups, only moments.

Axis letters: N samples, L MoE layers, E and F experts, P EP ranks.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rpopt.errors import InstanceError
from rpopt.plans import Placement
from rpopt.records import (
    Int64Array,
    IntArray,
    Record,
    freeze,
    int_array,
    positive_int,
)

MAX_SUM = 2**60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CovarianceInstance(Record):
    """Spread the experts of every layer so that few token copies squared meet.

    Parameters
    ----------
    moment_LEF
        Second moments of each layer: symmetric, at least 0, with a sum below `MAX_SUM`.
    num_ep_ranks
        P; divides E.
    """

    SCHEMA: ClassVar[str] = "rpopt.placement-covariance/1"

    moment_LEF: Int64Array
    num_ep_ranks: int

    def __post_init__(self) -> None:
        """Check sizes, symmetry and ranges."""
        moment_LEF = int_array(self.moment_LEF, name="moment_LEF", ndim=3, minimum=0)
        ranks = positive_int(self.num_ep_ranks, name="num_ep_ranks")
        num_layers, num_experts, others = moment_LEF.shape
        if num_layers == 0 or num_experts == 0 or num_experts % ranks:
            raise InstanceError(
                f"{num_layers} layers of {num_experts} experts cannot be spread equally"
                f" over ep = {ranks}"
            )
        if num_experts != others or (moment_LEF != moment_LEF.swapaxes(1, 2)).any():
            raise InstanceError(
                f"moment_LEF of shape {moment_LEF.shape} is not symmetric in its last"
                " two axes; use `second_moments`"
            )
        largest = float(moment_LEF.sum(axis=(1, 2), dtype=np.float64).max())
        if largest >= MAX_SUM:
            raise InstanceError(
                f"the moments of a layer sum to {largest:.4g}; they must sum to less"
                f" than {MAX_SUM}: divide the demand"
            )
        freeze(self, "moment_LEF", moment_LEF)
        freeze(self, "num_ep_ranks", ranks)


def second_moments(demand_NLE: IntArray, num_ep_ranks: int) -> CovarianceInstance:
    """Return the instance of the per-sample demand of a window."""
    demand_LNE = np.moveaxis(np.asarray(demand_NLE), 1, 0).astype(np.int64)
    total_LN = demand_LNE.sum(axis=2, dtype=np.float64)
    if (total_LN**2).sum(axis=1).max(initial=0.0) >= MAX_SUM:
        raise InstanceError("the demand is too large to square; divide it")
    moment_LEF = demand_LNE.swapaxes(1, 2) @ demand_LNE
    return CovarianceInstance(moment_LEF=moment_LEF, num_ep_ranks=num_ep_ranks)


def evaluate_covariance(
    instance: CovarianceInstance, placement: Placement
) -> Int64Array:
    """Return the sum over EP ranks of the quadratic form, [L]."""
    rank_LE = placement.rank_LE
    together_LEF = rank_LE[:, :, None] == rank_LE[:, None, :]
    total_L: Int64Array = (instance.moment_LEF * together_LEF).sum(axis=(1, 2))
    return total_L
