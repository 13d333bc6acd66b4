"""One-rank bounds on the sum of peaks: multipliers from linear programs.

Any multipliers prove a bound (`rpopt.placement.rank_bound`), so HiGHS' duals are
rounded, and what they prove is computed in integers. The program of a layer is kept
while one expert after the other is put on the rank: the hottest experts say most.

Axis letters: G groups, E experts.
"""

import time

import numpy as np

from rpopt.certificate import Bound
from rpopt.highs import LinearModel, LpHandle, Termination
from rpopt.highs.linear import FloatArray
from rpopt.placement.bounds_window import aggregate_bound, group_floors, window_bounds
from rpopt.placement.instance_window import WindowPlacementInstance
from rpopt.placement.rank_bound import NAME, Multipliers, value
from rpopt.records import positive_int

DEFAULT_EXPERTS = 4
_DENOMINATOR = 2**24


def rank_bounds(
    instance: WindowPlacementInstance,
    *,
    time_limit_s: float = 60.0,
    experts: int = DEFAULT_EXPERTS,
) -> tuple[Bound, ...]:
    """Return the strongest bound of every layer; never below `window_bounds`.

    Parameters
    ----------
    instance
        Groups, their demand and weights.
    time_limit_s
        Seconds for everything; layers that come later keep `window_bounds`.
    experts
        How many experts of a layer are tried, the hottest first.

    Raises
    ------
    SolverError
        When HiGHS fails.
    """
    positive_int(experts, name="experts")
    deadline_s = time.monotonic() + time_limit_s
    bounds = list(window_bounds(instance))
    if 1 in (instance.num_ep_ranks, instance.aggregate.experts_per_rank):
        return tuple(bounds)  # exact already
    floor_GL, aggregate_L = group_floors(instance), aggregate_bound(instance)
    for layer, known in enumerate(bounds):
        if known.value and time.monotonic() < deadline_s:
            program = _Program(
                instance, layer, floor_GL[:, layer], int(aggregate_L[layer])
            )
            bounds[layer] = program.better(known, experts, deadline_s)
    return tuple(bounds)


class _Program:
    """The relaxation of one layer: the load of a rank, and the peaks it leaves."""

    def __init__(
        self,
        instance: WindowPlacementInstance,
        layer: int,
        floor_G: np.ndarray,
        aggregate: int,
    ) -> None:
        self._instance, self._layer = instance, layer
        demand_GE = instance.weighted_GLE[:, layer]
        self._order_E = np.argsort(-demand_GE.sum(axis=0), kind="stable")
        self._model = _model(
            demand_GE / max(1, aggregate),
            floor_G / max(1, aggregate),
            instance.num_ep_ranks,
        )

    def better(self, known: Bound, experts: int, deadline_s: float) -> Bound:
        """Return the best bound of the hottest experts, or what is known."""
        with LpHandle(self._model, deadline_s=deadline_s) as handle:
            for expert in self._order_E[:experts].tolist():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    break
                handle.set_bounds([expert], [1.0], [1.0])
                result = handle.solve(left_s)
                if result.status is not Termination.OPTIMAL:
                    break
                assert result.row_duals is not None
                found = self._multipliers(expert, result.row_duals)
                proven = value(self._instance, found)
                if proven > known.value:
                    known = Bound(
                        name=NAME,
                        kind="arithmetic",
                        value=proven,
                        evidence=found.evidence(),
                    )
                handle.set_bounds([expert], [0.0], [1.0])
        return known

    def _multipliers(self, expert: int, row_duals: FloatArray) -> Multipliers:
        """Round duals down to multipliers that are in range."""
        num_groups = self._instance.num_groups
        dual = np.clip(row_duals[: 2 * num_groups + 1], 0.0, 1.0)
        whole = np.floor(dual * _DENOMINATOR).astype(np.int64)
        delta = int(whole[-1])
        alpha_G = np.minimum(whole[:num_groups], _DENOMINATOR - delta)
        beta_G = np.minimum(whole[num_groups:-1], _DENOMINATOR - delta - alpha_G)
        return Multipliers(
            layer=self._layer,
            expert=expert,
            denominator=_DENOMINATOR,
            alpha_G=tuple(alpha_G.tolist()),
            beta_G=tuple(beta_G.tolist()),
            delta=delta,
        )


def _model(demand_GE: FloatArray, floor_G: FloatArray, num_ranks: int) -> LinearModel:
    """Return the program, with demand in units of the aggregate bound.

    Columns: the share of each expert on the rank, then the peaks. Rows: the rank's
    load, the others' mean, the aggregate bound, the number of experts.
    """
    num_groups, num_experts = demand_GE.shape
    others = num_ranks - 1
    group_Z, expert_Z = np.nonzero(demand_GE)
    demand_Z = demand_GE[group_Z, expert_Z]
    one_G, one_E = np.ones(num_groups), np.ones(num_experts)
    group_G, expert_E = np.arange(num_groups), np.arange(num_experts)
    peak_G = num_experts + group_G
    entries = (
        (group_Z, expert_Z, -demand_Z),
        (group_G, peak_G, one_G),
        (num_groups + group_Z, expert_Z, demand_Z / others),
        (num_groups + group_G, peak_G, one_G),
        (np.full(num_groups, 2 * num_groups), peak_G, one_G),
        (np.full(num_experts, 2 * num_groups + 1), expert_E, one_E),
    )
    rows, cols, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    per_rank = num_experts // num_ranks
    mean_G = demand_GE.sum(axis=1) / others
    return LinearModel.from_triplets(
        rows=rows,
        cols=cols,
        values=values,
        col_cost=np.concatenate([0 * one_E, one_G]),
        col_lower=np.concatenate([0 * one_E, floor_G]),
        col_upper=np.concatenate([one_E, np.full(num_groups, np.inf)]),
        integrality=np.zeros(num_experts + num_groups, dtype=np.bool_),
        row_lower=np.concatenate([0 * one_G, mean_G, [1.0, per_rank]]),
        row_upper=np.concatenate([np.full(2 * num_groups + 1, np.inf), [per_rank]]),
    )
