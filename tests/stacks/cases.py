"""Settings and windows for the drop-ins, and what every schedule must keep."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from hypothesis import reject

from rpopt.errors import InfeasibleError
from rpopt.stacks import StackSettings
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology
from rpopt.window import Window
from tests.cases import HALF, random_window


def settings(dp: int = 2, ep: int = 2, **more: Any) -> StackSettings:
    sizes = {name: more.pop(name) for name in ("tp", "cp", "coupling") if name in more}
    return StackSettings(
        topology=Topology(dp=dp, ep=ep, **sizes),
        cost=HALF,
        stop=more.pop("stop", MaxSweeps(2)),
        **more,
    )


def window(seed: int, num_samples: int, longest: int = 40) -> Window:
    return random_window(seed, num_samples=num_samples, longest=longest)


_T = TypeVar("_T")


def when_filled(make: Callable[[], _T]) -> _T:
    """The answer, for samples that can fill the cells at all; else no example."""
    try:
        return make()
    except InfeasibleError as error:
        if "cannot fill" not in str(error):
            raise
        reject()


def check_cells(
    cells: list[list[list[int]]],
    lengths: Any,
    cap: int,
    *,
    pad: int = 1,
    row_multiple: int = 1,
    alone: bool = False,
) -> None:
    """The hard invariants of a plan: equal counts, none empty, cap, each once."""
    length_N = np.asarray(lengths)
    counts = {len(rows) for rows in cells}
    assert len(counts) == 1
    assert counts.pop() % row_multiple == 0
    flat = [i for rows in cells for cell in rows for i in cell]
    assert sorted(flat) == list(range(len(length_N)))
    for rows in cells:
        for cell in rows:
            assert cell
            tokens = int((-(-length_N[cell] // pad) * pad).sum())
            assert tokens <= cap or (alone and len(cell) == 1)
