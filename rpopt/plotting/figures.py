"""Several panels in one figure, as the bytes of a file."""

from collections.abc import Callable, Sequence
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Panel = Callable[[Axes], object]
_PANEL_INCHES = (5.0, 3.6)


def save_panels(panels: Sequence[Panel], file: BinaryIO, file_format: str) -> None:
    """Draw panels side by side and write them in a format such as "pdf".

    No window is opened and no global state of Matplotlib is touched.
    """
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, ax in zip(panels, axes, strict=True):
        panel(ax)
    figure.savefig(file, format=file_format)
