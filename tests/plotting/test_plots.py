import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib", reason="needs the plot extra")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from rpopt.plans import Layout  # noqa: E402
from rpopt.plotting import plot_annealing, plot_cells, plot_rank_loads  # noqa: E402


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def test_rank_loads_draws_peak_over_mean_and_survives_a_silent_layer():
    before = np.array([[4, 0], [3, 1], [0, 0]])
    ax = plot_rank_loads(before, np.array([[2, 2], [2, 2], [0, 0]]))
    first, second = (line.get_ydata() for line in ax.get_lines()[:2])
    assert list(first) == [2.0, 1.5, 1.0]
    assert list(second) == [1.0, 1.0, 1.0]


def test_cells_draws_the_fill_of_every_cell():
    layout = Layout(row_I=[0, 0, 1, 1], rank_I=[0, 1, 0, 1], num_rows=2)
    ax = plot_cells(layout, np.array([10, 5, 2, 0]), num_ranks=2, token_cap=10)
    assert np.allclose(ax.get_images()[0].get_array(), [[1.0, 0.5], [0.2, 0.0]])


def test_annealing_draws_history_and_bound_on_the_given_axes():
    _, mine = pyplot.subplots()
    ax = plot_annealing([0.1, 1.0], [1.2, 1.1], bound_j=1.05, ax=mine)
    assert ax is mine
    assert list(ax.get_lines()[0].get_ydata()) == [1.2, 1.1]
    assert list(ax.get_lines()[1].get_ydata()) == [1.05, 1.05]
    assert ax.get_xscale() == "log"


def test_what_was_found_at_once_is_drawn_at_a_millisecond():
    ax = plot_annealing([0.0, 1.0], [1.2, 1.1])
    assert list(ax.get_lines()[0].get_xdata()) == [1e-3, 1.0]
