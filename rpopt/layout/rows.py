"""The order of the rows: free, since J is a sum over rows."""

import numpy as np

from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array
from rpopt.rules import RowOrder


def order_rows(instance: LayoutInstance, layout: Layout, order: RowOrder) -> Layout:
    """Return the layout with its rows in another order; J does not change.

    "largest_first" lets allocators reserve their peak in the first row;
    "small_at_ends" shortens the ramps of a pipeline. Rows are compared by the ticks of
    their slowest shard.
    """
    if order == "as_found":
        return layout
    largest_first = np.argsort(-evaluate(instance, layout).row_ticks_R, kind="stable")
    rows = largest_first if order == "largest_first" else _small_at_ends(largest_first)
    position_R = np.empty_like(rows)
    position_R[rows] = np.arange(rows.size)
    return Layout(
        row_I=position_R[layout.row_I], rank_I=layout.rank_I, num_rows=layout.num_rows
    )


def _small_at_ends(largest_first: Int64Array) -> Int64Array:
    """Deal rows, smallest first, to the two ends in turn."""
    smallest_first = largest_first[::-1]
    return np.concatenate([smallest_first[::2], smallest_first[1::2][::-1]])
