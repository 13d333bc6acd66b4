"""The course of an annealing run."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from rpopt.plotting.axes import axes_or_new

_EARLIEST_S = 1e-3  # a logarithmic axis has no zero


def plot_annealing(
    seconds_s: Sequence[float],
    best_j: Sequence[float],
    *,
    bound_j: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the best J over time, with its lower bound as a line.

    Parameters
    ----------
    seconds_s
        Time stamps at which a better layout was found; drawn on a logarithmic axis,
        from a millisecond on.
    best_j
        J of the best layout at each time stamp.
    """
    ax = axes_or_new(ax)
    drawn_s = np.maximum(seconds_s, _EARLIEST_S)
    ax.step(drawn_s, best_j, where="post", marker=".", label="best J")
    if bound_j is not None:
        ax.axhline(bound_j, color="black", linestyle="--", label="lower bound")
    ax.set_xscale("log")
    ax.set_xlabel("seconds (logarithmic)")
    ax.set_ylabel("J (1 is perfect balance)")
    ax.legend(frameon=False)
    return ax
