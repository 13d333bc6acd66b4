"""The figure of the annealing study: gaps to the best known at each time limit."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.anneal_tables import SEARCHES, STOPS, Records

_STYLES = (("C0", "o"), ("C1", "s"), ("C2", "^"))


def draw(found: Records, names: Sequence[str], path: Path) -> None:
    """Draw one panel per case; nothing without cases."""
    if not names:
        return
    columns = min(3, len(names))
    shape = (-(-len(names) // columns), columns)
    figure = Figure(figsize=(3.2 * shape[1], 2.4 * shape[0]), layout="constrained")
    axes = figure.subplots(*shape, sharex=True, squeeze=False).flat
    for name, axis in zip(names, axes, strict=False):
        _panel(axis, found, name)
    axes[0].legend(fontsize=7)
    figure.supxlabel("time limit, CPU s of one thread")
    figure.supylabel("J above the best known, %")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _panel(axis: Any, found: Records, name: str) -> None:
    """Draw medians over seeds as lines, every run as a dot."""
    for method, (color, marker) in zip(SEARCHES, _STYLES, strict=True):
        gaps = {
            float(stop.removesuffix(" s")): list(map(found.gap, runs))
            for stop in STOPS
            if (runs := found(name, method, stop))
        }
        for limit_s, dots in gaps.items():
            axis.plot([limit_s] * len(dots), dots, ".", color=color, alpha=0.3)
        middle = [statistics.median(dots) for dots in gaps.values()]
        axis.plot(list(gaps), middle, color=color, marker=marker, label=method)
    axis.set_xscale("log")
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_ylim(bottom=0)
    axis.set_title(name, fontsize=9)
