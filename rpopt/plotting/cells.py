"""Cells of a layout by row and rank.

Axis letters: I items, R rows, D DP ranks.
"""

import numpy as np
from matplotlib.axes import Axes

from rpopt.plans import Layout
from rpopt.plotting.axes import axes_or_new
from rpopt.records import Int64Array


def plot_cells(
    layout: Layout,
    weight_tokens_I: Int64Array,
    *,
    num_ranks: int,
    token_cap: int,
    ax: Axes | None = None,
) -> Axes:
    """Draw how full each cell is, as a share of the token cap.

    Parameters
    ----------
    weight_tokens_I
        Tokens that each item of the layout occupies.
    """
    ax = axes_or_new(ax)
    fill_RD = np.zeros((layout.num_rows, num_ranks))
    np.add.at(fill_RD, (layout.row_I, layout.rank_I), weight_tokens_I / token_cap)
    image = ax.imshow(fill_RD, vmin=0.0, vmax=1.0, cmap="cividis", aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="share of the token cap")
    ax.set_xlabel("DP rank")
    ax.set_ylabel("row")
    return ax
