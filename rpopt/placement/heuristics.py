"""Placements found fast: the baselines of other stacks, and the best of ours.

Axis letters: L MoE layers, E experts, P EP ranks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.checks import require_feasible
from rpopt.errors import InstanceError
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.instance import PlacementInstance, check, evaluate
from rpopt.placement.search import DEFAULT_EFFORT, improve, relabel
from rpopt.plans import Placement
from rpopt.records import Int64Array


def identity(instance: PlacementInstance) -> Placement:
    """Return the placement that training starts with: every expert in its own slot."""
    num_layers, num_experts = instance.load_LE.shape
    return Placement.identity(num_layers, num_experts, instance.num_ep_ranks)


def lpt(instance: PlacementInstance) -> Placement:
    """Put experts, largest load first, on the least loaded rank that has room.

    Longest processing time first (Graham, 1969) with at most E / P experts per rank.
    Loads are exact; among equals the lowest expert and the lowest rank come first.
    """
    rank_LE, _ = _greedy(instance.load_LE, instance.num_ep_ranks)
    return Placement.from_ranks(rank_LE, instance.num_ep_ranks)


def eplb(instance: PlacementInstance) -> Placement:
    """Place as the DeepSeek load balancer (EPLB) does without redundant experts.

    Its `balanced_packing` is the rule of `lpt`, with three differences: loads are
    sorted and added in 32-bit floats, so that loads above 2**24 may be ordered or
    placed otherwise; experts fill a rank's slots in the order of their load instead of
    keeping slots; and with one expert per rank nothing moves. Where loads are equal,
    the original takes them in the order its sort happens to give, here the lowest
    expert comes first.
    """
    num_experts, ranks = instance.load_LE.shape[1], instance.num_ep_ranks
    if num_experts == ranks:
        return identity(instance)
    rank_LE, arrival_LE = _greedy(instance.load_LE.astype(np.float32), ranks)
    slot_LE = rank_LE * instance.experts_per_rank + arrival_LE
    return Placement(slot_LE=slot_LE, num_ep_ranks=ranks)


def snake(instance: PlacementInstance) -> Placement:
    """Deal experts, largest load first, to ranks 0 to P - 1, P - 1 to 0, and so on.

    Optimal for one or two experts per rank (folding: the largest beside the smallest);
    good for mild skew and many experts per rank.
    """
    num_experts, ranks = instance.load_LE.shape[1], instance.num_ep_ranks
    turn, step = np.divmod(np.arange(num_experts), ranks)
    deal_E = np.where(turn % 2 == 0, step, ranks - 1 - step)
    rank_LE = np.empty_like(instance.load_LE)
    order_LE = np.argsort(-instance.load_LE, axis=1, kind="stable")
    np.put_along_axis(rank_LE, order_LE, deal_E[None, :], axis=1)
    return Placement.from_ranks(rank_LE, ranks)


METHODS: dict[str, Callable[[PlacementInstance], Placement]] = {
    "identity": identity,
    "lpt": lpt,
    "eplb": eplb,
    "snake": snake,
}
"""Placements that need nothing but the instance, without search."""


def place(
    instance: PlacementInstance,
    *,
    current: Placement | None = None,
    seed: int = 0,
    effort: int = DEFAULT_EFFORT,
    tolerance: float = 0.0,
    threads: int = 1,
) -> Placement:
    """Return the best placement of every layer: heuristics, then search.

    A layer is done once its peak meets the bound, or comes within the tolerance. The
    result depends neither on the machine nor on `threads`.

    Parameters
    ----------
    current
        The placement now in force. It is improved first and wins ties, ranks are
        relabelled so that the fewest experts move, and those that stay keep their
        slot. None where moves do not matter.
    seed
        Seed of the search.
    effort
        Kicks of the search per layer and start, in layers that do not meet the bound.
        The default takes milliseconds per layer; 3,000 take tenths of a second.
    tolerance
        Share of the bound by which a peak may exceed it; with `current`, the way to
        trade balance for moves: a layer within it stays as it is.
    threads
        Layers that are searched at once.

    Raises
    ------
    InstanceError
        For a negative effort, no threads, or a tolerance outside [0, 1].
    InfeasibleError
        When `current` does not fit the instance.
    """
    if not 0 <= tolerance <= 1:
        raise InstanceError(f"tolerance = {tolerance} lies outside [0, 1]")
    bound_L = np.array([bound.value for bound in peak_bounds(instance)])
    goal_L = bound_L + (bound_L * tolerance).astype(np.int64)

    def search(start: Placement) -> Placement:
        return improve(
            instance, start, bound_L=goal_L, seed=seed, effort=effort, threads=threads
        )

    starts = [method(instance) for method in METHODS.values()]
    if current is None:
        return search(_best(instance, starts))
    require_feasible(check(instance, current), "the current placement")
    found = search(current)
    open_L = evaluate(instance, found).peak_L > goal_L
    if open_L.any():
        start = _where(open_L, _best(instance, starts), found)
        found = _best(instance, [found, search(start)])
    return relabel(found, current)


def _greedy(
    load_LE: npt.NDArray[Any], num_ep_ranks: int
) -> tuple[Int64Array, Int64Array]:
    """Return the rank of each expert and how many came to that rank before it."""
    num_layers, num_experts = load_LE.shape
    layer_L = np.arange(num_layers)
    load_LP = np.zeros((num_layers, num_ep_ranks), dtype=load_LE.dtype)
    count_LP = np.zeros((num_layers, num_ep_ranks), dtype=np.int64)
    full = num_experts // num_ep_ranks
    never = np.array(2**62, dtype=load_LE.dtype)
    rank_LE = np.empty(load_LE.shape, dtype=np.int64)
    arrival_LE = np.empty_like(rank_LE)
    for expert_L in np.argsort(-load_LE, axis=1, kind="stable").T:
        rank_L = np.where(count_LP < full, load_LP, never).argmin(axis=1)
        rank_LE[layer_L, expert_L] = rank_L
        arrival_LE[layer_L, expert_L] = count_LP[layer_L, rank_L]
        load_LP[layer_L, rank_L] += load_LE[layer_L, expert_L]
        count_LP[layer_L, rank_L] += 1
    return rank_LE, arrival_LE


def _best(instance: PlacementInstance, placements: list[Placement]) -> Placement:
    """Take each layer from the placement with its smallest peak, the first of ties."""
    best, *others = placements
    for other in others:
        better_L = evaluate(instance, other).peak_L < evaluate(instance, best).peak_L
        best = _where(better_L, other, best)
    return best


def _where(
    choose_L: npt.NDArray[np.bool_], first: Placement, second: Placement
) -> Placement:
    """Take the chosen layers from the first placement, the others from the second."""
    slot_LE = np.where(choose_L[:, None], first.slot_LE, second.slot_LE)
    return Placement(slot_LE=slot_LE, num_ep_ranks=first.num_ep_ranks)
