"""The same number of samples on every rank, for stacks that split batches evenly.

The planner gives every rank the same number of rows, not of samples. A few short
samples change ranks; their tokens, and so J, hardly do.

Axis letters: D DP ranks.
"""

from rpopt.errors import InfeasibleError, InstanceError
from rpopt.records import Int64Array
from rpopt.stacks.settings import Cells
from rpopt.topology import Topology


def require_divisible(num_units: int, num_ranks: int) -> None:
    """Raise unless the units can be spread evenly over the ranks."""
    if num_units % num_ranks:
        raise InstanceError(
            f"{num_units} samples (or groups of one prompt) cannot be split evenly over"
            f" {num_ranks} DP ranks, as this stack does; pad or trim the batch to a"
            f" multiple of {num_ranks} before it is balanced"
        )


def even_out(
    cells: Cells, tokens_U: Int64Array, token_cap: int, topology: Topology
) -> Cells:
    """Move the shortest units from full to short ranks until counts are equal.

    Parameters
    ----------
    cells
        Units (samples, or bundles of equal size) of each cell.
    tokens_U
        Padded tokens of each unit, int64 [U].
    token_cap
        What a cell may hold.
    topology
        Among equally short units, one that stays in its shard and row moves first:
        the loads of the experts do not change then.

    Raises
    ------
    InfeasibleError
        When the cells have no room left.
    """
    cells = [[list(cell) for cell in rows] for rows in cells]
    count_D = [sum(map(len, rows)) for rows in cells]
    require_divisible(sum(count_D), len(cells))
    target = sum(count_D) // len(cells)
    shard_D = topology.rank_shards_D.tolist()
    room = [[token_cap - int(tokens_U[c].sum()) for c in rows] for rows in cells]
    where = {
        u: (d, r) for d, rs in enumerate(cells) for r, c in enumerate(rs) for u in c
    }
    for unit in sorted(where, key=lambda unit: (tokens_U[unit], unit)):
        giver, row = where[unit]
        if count_D[giver] <= target or len(cells[giver][row]) == 1:
            continue
        places = [
            ((shard_D[giver], row) != (shard_D[taker], into), -free, taker, into)
            for taker, rooms in enumerate(room)
            if count_D[taker] < target
            for into, free in enumerate(rooms)
            if tokens_U[unit] <= free
        ]
        if places:
            _, _, taker, into = min(places)
            cells[giver][row].remove(unit)
            cells[taker][into].append(unit)
            room[taker][into] -= int(tokens_U[unit])
            count_D[giver] -= 1
            count_D[taker] += 1
    if max(count_D) > target:
        raise InfeasibleError(
            f"the cells have no room to give all {len(cells)} ranks {target} samples"
            f" under token_cap = {token_cap}; raise it"
        )
    return [[sorted(cell) for cell in rows] for rows in cells]
