"""Forecasts of the next window's demand from past windows, in whole token copies.

A placement is moved before a window and serves the windows after it as well, so it is
chosen for demand that is not known yet. Two forecasts: an exponential average, in which
a window of age a counts 2**(-a / half-life), and a mixture of the demand of tasks,
weighted by the shares that the next window is expected to have.

Everything is exact in integers: the weight of a window is a whole number of at most
`AGE_UNIT`, rounded to the nearest. Shares become whole copies by rounding cumulative
sums to the nearest, so every layer sums to the copies that are asked for, and each
entry is within one copy of its exact share.

Axis letters: W past windows, oldest first, N samples, K tasks, L MoE layers, E experts,
X any.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.placement.instance import MAX_LAYER_LOAD
from rpopt.records import Int64Array, IntArray, int_array, positive_int

AGE_UNIT = 2**12
"""Weight of the latest window."""
_SHARE_UNIT = 2**24  # task shares are rounded to parts of this


def exponential_average(
    past_WLE: npt.ArrayLike, *, half_life_windows: float, copies: int
) -> Int64Array:
    """Return the expected demand of the next window, [L, E].

    Windows count by their age and by their copies: a window of twice the size says
    twice as much. A layer without any demand is expected to be even.

    Parameters
    ----------
    past_WLE
        Token copies wanted from each expert in each past window, oldest first.
    half_life_windows
        Age, in windows, at which a window counts half; 0 for the latest window alone.
    copies
        Token copies of the next window per layer: top_k x its tokens.

    Raises
    ------
    InstanceError
        For no window, a negative half-life, or copies outside [0, `MAX_LAYER_LOAD`).
    """
    past_WLE = int_array(past_WLE, name="past_WLE", ndim=3, minimum=0)
    return to_copies(decayed_sum(past_WLE, half_life_windows), copies)


def mixture(
    task_KLE: npt.ArrayLike, share_K: npt.ArrayLike, *, copies: int
) -> Int64Array:
    """Return the demand of a window with given shares of tasks, [L, E].

    A task without any demand so far is expected to be like all tasks together.

    Parameters
    ----------
    task_KLE
        Demand of each task: that of one window (`demand_by_task`), or the decayed sum
        of several (`decayed_sum`). Only the proportions within a task and layer count.
    share_K
        Share of the token copies that each task has in the next window, known or
        expected; at least 0, in any unit.
    copies
        Token copies of the next window per layer: top_k x its tokens.

    Raises
    ------
    InstanceError
        When the shares do not fit the tasks, are negative or not finite, or are all 0.
    """
    task_KLE = int_array(task_KLE, name="task_KLE", ndim=3, minimum=0)
    weight_K = _whole_shares(share_K, len(task_KLE))
    (copies_K,) = to_copies(weight_K[None], copies)
    seen_KL1 = task_KLE.any(axis=2, keepdims=True)
    base_KLE = np.where(seen_KL1, task_KLE, task_KLE.sum(axis=0))
    parts = zip(base_KLE, copies_K.tolist(), strict=True)
    return np.array([to_copies(*part) for part in parts]).sum(axis=0)


def demand_by_task(
    demand_NLE: IntArray, task_N: npt.ArrayLike, num_tasks: int
) -> Int64Array:
    """Return the demand of each task of a window, [K, L, E].

    Raises
    ------
    InstanceError
        When the tasks do not fit the samples, or lie outside [0, K).
    """
    num_tasks = positive_int(num_tasks, name="num_tasks")
    task_N = int_array(task_N, name="task_N", ndim=1, minimum=0)
    if task_N.size != len(demand_NLE):
        raise InstanceError(
            f"{task_N.size} task labels for {len(demand_NLE)} samples; give one each"
        )
    if task_N.max(initial=0) >= num_tasks:
        raise InstanceError(
            f"task {task_N.max()}; there are {num_tasks}, numbered from 0"
        )
    task_KLE = np.zeros((num_tasks, *demand_NLE.shape[1:]), dtype=np.int64)
    np.add.at(task_KLE, task_N, demand_NLE)
    return task_KLE


def decayed_sum(past_WX: npt.NDArray[Any], half_life_windows: float) -> Int64Array:
    """Return the sum of windows, each weighted by its age; exact.

    Parameters
    ----------
    past_WX
        Whole numbers of past windows, oldest first; any axes may follow.
    half_life_windows
        Age, in windows, at which a window counts half; 0 for the latest window alone.

    Raises
    ------
    InstanceError
        For no window, a negative half-life, or sums that could overflow.
    """
    if len(past_WX) == 0:
        raise InstanceError("there is no past window; a forecast needs at least one")
    weight_W = age_weights(len(past_WX), half_life_windows)
    most = float(np.abs(past_WX).sum(axis=-1, dtype=np.float64).max(initial=0.0))
    if most * float(weight_W.sum()) >= MAX_LAYER_LOAD * AGE_UNIT:
        raise InstanceError(
            f"the demand of a window sums to {most:.4g} in one layer; {len(past_WX)}"
            " such windows overflow: divide demand or use a shorter past"
        )
    total_X: Int64Array = np.tensordot(weight_W, past_WX.astype(np.int64), axes=1)
    return total_X


def age_weights(num_windows: int, half_life_windows: float) -> Int64Array:
    """Return the weight of each window, oldest first; the latest has `AGE_UNIT`."""
    if not (math.isfinite(half_life_windows) and half_life_windows >= 0):
        raise InstanceError(
            f"half_life_windows = {half_life_windows}; give a number of at least 0"
        )
    age_W = np.arange(num_windows - 1, -1, -1)
    if half_life_windows == 0:
        return np.where(age_W == 0, AGE_UNIT, 0)
    return np.rint(AGE_UNIT * np.exp2(-age_W / half_life_windows)).astype(np.int64)


def to_copies(base_LE: Int64Array, copies: int) -> Int64Array:
    """Return whole copies in proportion to demand; even where there is none."""
    copies = positive_int(copies, name="copies", minimum=0)
    if copies >= MAX_LAYER_LOAD:
        raise InstanceError(
            f"copies = {copies}; fewer than {MAX_LAYER_LOAD} per layer are supported"
        )
    base_LE = np.where(base_LE.any(axis=1, keepdims=True), base_LE, 1)
    sum_LE = np.cumsum(base_LE, axis=1).astype(object)  # products exceed 64 bits
    edge_LE = (2 * sum_LE * copies // sum_LE[:, -1:] + 1) // 2
    return np.diff(edge_LE, axis=1, prepend=0).astype(np.int64)


def _whole_shares(share_K: npt.ArrayLike, num_tasks: int) -> Int64Array:
    share = np.asarray(share_K, dtype=np.float64)
    if share.shape != (num_tasks,):
        raise InstanceError(
            f"share_K has shape {share.shape}; give one for each of {num_tasks} tasks"
        )
    if not (np.isfinite(share).all() and (share >= 0).all() and share.any()):
        raise InstanceError(
            f"share_K = {share.tolist()}; shares are finite, at least 0, not all 0"
        )
    return np.rint(share / share.max() * _SHARE_UNIT).astype(np.int64)
