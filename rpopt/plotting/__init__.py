"""Figures. Needs the `plot` extra; each function draws on given axes and returns them.

Nothing is shown, and saved only by `save_panels`: that is the caller's choice.
"""

from rpopt.plotting.annealing import plot_annealing
from rpopt.plotting.cells import plot_cells
from rpopt.plotting.figures import save_panels
from rpopt.plotting.rank_loads import plot_rank_loads

__all__ = ["plot_annealing", "plot_cells", "plot_rank_loads", "save_panels"]
