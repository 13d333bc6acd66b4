"""The figure of the placement study: held-out peak over mean against group size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

_STYLES = (("C0", "o"), ("C1", "s"), ("C2", "^"))


def draw(rows: Sequence[Mapping[str, str]], methods: Sequence[str], path: Path) -> None:
    """Draw one panel per number of EP ranks; nothing without rows."""
    sizes = list(dict.fromkeys(row["ep"] for row in rows))
    if not sizes:
        return
    figure = Figure(figsize=(3.0 * len(sizes), 2.6), layout="constrained")
    axes = figure.subplots(1, len(sizes), squeeze=False)[0]
    for ep, axis in zip(sizes, axes, strict=True):
        own = [row for row in rows if row["ep"] == ep]
        samples = [int(row["samples"]) for row in own]
        for method, (color, marker) in zip(methods, _STYLES, strict=True):
            values = [float(row[method]) for row in own]
            axis.plot(samples, values, color=color, marker=marker, label=method)
        axis.set_xscale("log", base=2)
        axis.set_title(f"EP {ep}", fontsize=9)
    axes[0].legend(fontsize=7)
    figure.supxlabel("samples per group")
    figure.supylabel("held-out peak / mean")
    figure.savefig(path, dpi=110, metadata={"Software": None})
