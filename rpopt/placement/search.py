"""Local search on placements, layer by layer, and the labels of EP ranks.

The search exchanges sets of experts between the peak rank and another rank, kicks the
placement when no exchange helps, and ends when the peak meets its bound (see
`rpopt.placement.kernels`). Work is limited by counts, never by time.

Axis letters: L MoE layers, E experts, P EP ranks, M experts per rank, Z subsets,
J sizes of subsets.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from math import comb

import numpy as np

from rpopt.counter import key
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.instance import PlacementInstance, evaluate
from rpopt.plans import Placement
from rpopt.records import Int64Array, positive_int

DEFAULT_EFFORT = 100
MAX_SUBSETS = 512
"""Sets of equal size are exchanged if a rank has at most this many of them."""
_STREAM = 0x706C616365  # "place"


def improve(
    instance: PlacementInstance,
    placement: Placement,
    *,
    bound_L: Int64Array | None = None,
    seed: int = 0,
    effort: int = DEFAULT_EFFORT,
    threads: int = 1,
) -> Placement:
    """Return a placement with peaks that are smaller, or the same.

    Experts that stay on their rank keep their slot.

    Parameters
    ----------
    placement
        Where the search starts.
    bound_L
        Lower bound on the peak of each layer; layers that meet it are left alone.
        None to compute it.
    seed
        Same seed, same start and same effort give the same result; a layer's result
        does not depend on the other layers.
    effort
        Kicks per layer; 0 for plain descent.
    threads
        Layers that are searched at once.
    """
    effort = positive_int(effort, name="effort", minimum=0)
    threads = positive_int(threads, name="threads")
    if bound_L is None:
        bound_L = np.array([bound.value for bound in peak_bounds(instance)])
    layers = np.flatnonzero(evaluate(instance, placement).peak_L > bound_L).tolist()
    if not layers:
        return placement
    from rpopt.placement import kernels  # numba loads slowly

    ranks, per_rank = instance.num_ep_ranks, instance.experts_per_rank
    subsets = kernels.Subsets(*exchangeable_subsets(per_rank))
    random_key = key(seed, _STREAM)
    # Small ranks have few exchanges: a larger kick is needed to leave a local optimum.
    kick_swaps = 4 if per_rank <= 4 else 2
    rank_LE = placement.rank_LE
    member_LPM = placement.expert_of_slot_LE.reshape(-1, ranks, per_rank)

    def search(layer: int) -> None:
        member_PM = kernels.search(
            instance.load_LE[layer],
            member_LPM[layer],
            subsets,
            bound=int(bound_L[layer]),
            kicks=effort,
            kick_swaps=kick_swaps,
            key=random_key,
        )
        rank_LE[layer, member_PM] = np.arange(ranks)[:, None]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(search, layers))
    return Placement.from_ranks(rank_LE, ranks, placement)


def relabel(placement: Placement, current: Placement) -> Placement:
    """Renumber the EP ranks of every layer so that the fewest experts move.

    Which rank holds which set of experts does not change the peak, so the labels are
    an assignment problem: most experts in common with `current`. Experts that stay on
    their rank keep their slot.
    """
    from scipy.optimize import linear_sum_assignment  # loads slowly

    num_layers = placement.slot_LE.shape[0]
    ranks = placement.num_ep_ranks
    rank_LE, current_LE = placement.rank_LE, current.rank_LE
    for layer in range(num_layers):
        pair_E = rank_LE[layer] * ranks + current_LE[layer]
        common_PP = np.bincount(pair_E, minlength=ranks**2).reshape(ranks, ranks)
        _, label_P = linear_sum_assignment(common_PP, maximize=True)
        rank_LE[layer] = label_P[rank_LE[layer]]
    return Placement.from_ranks(rank_LE, ranks, current)


def exchangeable_subsets(per_rank: int) -> tuple[Int64Array, Int64Array]:
    """Return the sets of members of a rank that the search exchanges.

    Exchanging j members of two ranks is exchanging the other M - j and the labels, so
    sizes up to M / 2 cover every re-partition of two ranks. Larger ranks have so many
    sets that the smallest sizes suffice.

    Returns
    -------
    position_ZJ
        Positions of each subset's members in its rank; a subset of size j fills the
        first j columns.
    start_J1
        Subsets of size j are rows `start_J1[j - 1]` to `start_J1[j]`.
    """
    sizes = [1]
    while sizes[-1] < per_rank // 2 and comb(per_rank, sizes[-1] + 1) <= MAX_SUBSETS:
        sizes.append(sizes[-1] + 1)
    count_J = [comb(per_rank, size) for size in sizes]
    position_ZJ = np.zeros((sum(count_J), len(sizes)), dtype=np.int64)
    start_J1 = np.concatenate([[0], np.cumsum(count_J)])
    for size, start in zip(sizes, start_J1.tolist(), strict=False):
        rows = list(combinations(range(per_rank), size))
        position_ZJ[start : start + len(rows), :size] = rows
    return position_ZJ, start_J1
