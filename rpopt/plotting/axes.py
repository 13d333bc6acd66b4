"""The axes to draw on."""

from matplotlib import pyplot
from matplotlib.axes import Axes


def axes_or_new(ax: Axes | None) -> Axes:
    """Return the given axes, or those of a new figure."""
    return pyplot.subplots(layout="constrained")[1] if ax is None else ax
