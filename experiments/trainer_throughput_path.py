"""From CPU seconds between collectives to the step of an unshared machine.

With more ranks than cores, ranks take turns, and the wall clock says nothing about a
machine with a core for each. The *critical path* does: a rank's clock goes on by its
own CPU seconds; in a collective, all that meet wait for the last of them. Sending
itself costs nothing here.

A cell of the step has, per layer, three collectives forwards (how many copies; copies
there; results back) and two backwards (the latter two reversed), after two at the
start of the step (cells agreed on, loads summed).

Axis letters: D ranks, C collectives, L layers, R rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from experiments.trainer_throughput_worker import Timing

FloatArray = npt.NDArray[np.float64]
_FIRST = 2


def critical_path_s(timings: Sequence[Timing]) -> float:
    """Return the seconds of one step whose ranks have a core each.

    Parameters
    ----------
    timings
        The step on every rank.
    """
    cpu_DC = np.stack([timing.cpu_C for timing in timings])
    clock_D = np.zeros(len(timings))
    for c in range(cpu_DC.shape[1]):
        clock_D += cpu_DC[:, c]
        for peers in {timing.peers_C[c] for timing in timings}:
            clock_D[list(peers)] = clock_D[list(peers)].max()
    return float(clock_D.max())


def typical(repeats: Sequence[Sequence[Timing]]) -> list[Timing]:
    """Return one step whose parts each take their median over repeats, by rank.

    A rank that is disturbed in one part of one repeat delays all others there, so the
    path of a noisy step is too long; here such parts are gone.
    """
    return [
        replace(steps[0], cpu_C=np.median([step.cpu_C for step in steps], axis=0))
        for steps in zip(*repeats, strict=True)
    ]


def balanced_s(timings: Sequence[Timing]) -> float:
    """Return the same with work shared equally: the mean over ranks."""
    return float(np.mean([timing.cpu_C.sum() for timing in timings]))


def wall_s(timings: Sequence[Timing]) -> float:
    """Return the seconds until the last rank is done."""
    return max(timing.wall_s for timing in timings)


def is_expert_C(num_layers: int, num_rows: int) -> npt.NDArray[np.bool_]:
    """Return which parts of a step are the experts' work.

    These are the parts that end when results leave the experts: forwards the third of
    each layer, backwards the second.
    """
    forward = np.tile([False, False, True], num_layers)
    backward = np.tile([False, True], num_layers)
    cells = np.tile(np.concatenate([forward, backward]), num_rows)
    return np.concatenate([np.zeros(_FIRST, dtype=np.bool_), cells])


def expert_s(timing: Timing, num_layers: int, num_rows: int) -> float:
    """Return the CPU seconds of a rank's experts."""
    is_expert = is_expert_C(num_layers, num_rows)
    return float(timing.cpu_C[: is_expert.size][is_expert].sum())
