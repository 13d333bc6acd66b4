"""Loads of the EP ranks, before and after a placement.

Axis letters: L MoE layers, P EP ranks.
"""

import numpy as np
from matplotlib.axes import Axes

from rpopt.plotting.axes import axes_or_new
from rpopt.records import Int64Array


def plot_rank_loads(
    before_LP: Int64Array, after_LP: Int64Array, ax: Axes | None = None
) -> Axes:
    """Draw the largest load over the mean, layer by layer, before and after.

    Parameters
    ----------
    before_LP, after_LP
        Token copies received by each EP rank under two placements.
    """
    ax = axes_or_new(ax)
    layers = np.arange(before_LP.shape[0])
    for load_LP, label, marker in (
        (before_LP, "before", "o"),
        (after_LP, "after", "s"),
    ):
        mean_L = np.maximum(load_LP.mean(axis=1), 1e-300)
        peak_L, low_L = load_LP.max(axis=1) / mean_L, load_LP.min(axis=1) / mean_L
        peak_L = np.where(load_LP.any(axis=1), peak_L, 1.0)
        low_L = np.where(load_LP.any(axis=1), low_L, 1.0)
        (line,) = ax.plot(layers, peak_L, marker=marker, markersize=3, label=label)
        ax.fill_between(layers, low_L, peak_L, alpha=0.15, color=line.get_color())
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    ax.set_xlabel("MoE layer")
    ax.set_ylabel("EP-rank load over mean (smallest to largest)")
    ax.legend(frameon=False)
    return ax
