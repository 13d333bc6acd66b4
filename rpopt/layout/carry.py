"""The layout of one window as a start for another one.

Axis letters: I items, X cells.
"""

import numpy as np

from rpopt.errors import MismatchError
from rpopt.layout.arrange import fill_empty
from rpopt.layout.cells import repair
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array


def carry_over(
    layout: Layout, previous: LayoutInstance, instance: LayoutInstance
) -> Layout | None:
    """Lay items out like those of a previous window, matched by sorted attention.

    The item at some quantile of the new window's attention goes where the item at this
    quantile was. Then the token cap, the limit of samples and the number of rows are
    restored: items that do not fit go to the emptiest cell with room, and empty cells
    get half of the dearest one.

    Parameters
    ----------
    layout, previous
        A layout, and the instance that it belongs to; as many items as its own.
    instance
        What to lay out.

    Returns
    -------
    A feasible layout, or None where the repair finds no room.

    Raises
    ------
    MismatchError
        When the instances differ in their ranks or shards, or the layout and its
        instance in their items.
    """
    if not np.array_equal(previous.shard_of_rank_D, instance.shard_of_rank_D):
        raise MismatchError(
            f"the previous window had {previous.num_ranks} ranks in"
            f" {previous.num_shards} shards, this one has {instance.num_ranks} in"
            f" {instance.num_shards}, or other ones; start from baselines instead"
        )
    if layout.row_I.size != previous.num_items:
        raise MismatchError(
            f"the layout has {layout.row_I.size} items, its window"
            f" {previous.num_items}; give the window that was planned"
        )
    old, new = _by_attention(previous), _by_attention(instance)
    like = np.empty(instance.num_items, dtype=np.int64)
    middle = 2 * np.arange(instance.num_items) + 1
    like[new] = old[middle * previous.num_items // (2 * instance.num_items)]
    row_I, rank_I = layout.row_I[like], layout.rank_I[like]
    cell_I = row_I * instance.num_ranks + rank_I
    placed_I = repair(instance, np.where(row_I < instance.num_rows, cell_I, -1))
    if placed_I is None:
        return None
    row_I, rank_I = np.divmod(fill_empty(instance, placed_I), instance.num_ranks)
    return Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)


def _by_attention(instance: LayoutInstance) -> Int64Array:
    """Return the items by increasing attention, the heavier of equals last."""
    attention_I = instance.attention_ticks_IC.sum(axis=1)
    order_I: Int64Array = np.lexsort((instance.weight_I, attention_I))
    return order_I
