"""Statistics of a run: what happened at each temperature.

Floats are for reading only; nothing here steers the run.

Axis letters: B replicas, M kinds of moves.
"""

import math

import numpy as np

from rpopt.anneal.moves import PATTERN, Kind
from rpopt.anneal.resample import Resampling
from rpopt.anneal.result import TemperatureStatistics
from rpopt.anneal.run import Engine, Run


class Log:
    """Collects statistics, and follows the families of the first population.

    Parameters
    ----------
    run
        The run to describe.
    statistics
        Whether to collect anything.
    """

    def __init__(self, run: Run, *, statistics: bool) -> None:
        self.rows: list[TemperatureStatistics] = []
        self._run, self._active = run, statistics
        self._family_B = np.arange(run.population)
        self._log_partition = 0.0
        self._culled = 0
        self._moves = 0
        self._accepted_M = np.zeros(len(Kind), dtype=np.int64)

    def resampled(self, step: Resampling) -> None:
        """Note who descends from whom."""
        if self._active:
            self._family_B = self._family_B[list(step.parent_B)]
            self._log_partition += step.log_mean_weight
            self._culled = step.culled

    def swept(self, replicas: Engine, temperature: int) -> None:
        """Note the population after the moves at one temperature."""
        if not self._active or self._run.moves == self._moves:
            return
        energy_B = np.sort(replicas.energies())
        size = energy_B.size
        _, members_F = np.unique(self._family_B, return_counts=True)
        share_F = members_F / size
        accepted_M, run = replicas.accepted(), self._run
        row = TemperatureStatistics(
            seconds_s=run.seconds_s,
            sweeps=run.sweeps,
            temperature_ticks=temperature,
            population=size,
            energy_min_ticks=int(energy_B[0]),
            energy_q25_ticks=int(energy_B[size // 4]),
            energy_median_ticks=int(energy_B[size // 2]),
            energy_q75_ticks=int(energy_B[size * 3 // 4]),
            energy_max_ticks=int(energy_B[-1]),
            attempted_M=_attempted(self._moves, run.moves, size),
            accepted_M=tuple((accepted_M - self._accepted_M).tolist()),
            culled_fraction=self._culled / size,
            num_families=int(members_F.size),
            family_entropy=-math.fsum(n * math.log(n) for n in share_F.tolist()),
            rho_t=size * math.fsum(n * n for n in share_F.tolist()),
            log_partition=self._log_partition,
        )
        self.rows.append(row)
        self._moves, self._accepted_M, self._culled = run.moves, accepted_M, 0


def _attempted(first: int, last: int, population: int) -> tuple[int, ...]:
    """Return how many moves of each kind lie between two move numbers."""
    periods, rest = divmod(last - first, len(PATTERN))
    kinds = [PATTERN[n % len(PATTERN)] for n in range(first, first + rest)]
    return tuple(
        population * (periods * PATTERN.count(kind) + kinds.count(kind))
        for kind in Kind
    )
