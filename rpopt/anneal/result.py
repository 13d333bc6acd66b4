"""What a run of population annealing returns.

Axis letters: M kinds of moves.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rpopt.anneal.run import HistoryPoint
from rpopt.plans import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureStatistics:
    """The population at the end of one temperature's moves.

    Parameters
    ----------
    seconds_s, sweeps
        Since the start of the run.
    temperature_ticks
        The temperature; 0 for the final descent.
    population
        B.
    energy_min_ticks, energy_q25_ticks, energy_median_ticks, energy_q75_ticks
        Smallest energy, and order statistics of the energies.
    energy_max_ticks
        Largest energy.
    attempted_M, accepted_M
        Moves of each kind at this temperature, over all replicas.
    culled_fraction
        Share of the replicas that died in the resampling before these moves.
    num_families
        Replicas of the first population that still have descendants.
    family_entropy
        -sum of n log n over the families' shares n; log B at the start.
    rho_t
        B times the sum of n squared: 1 at the start, B when one family is left.
    log_partition
        Estimate of log(Z / Z at the first temperature); -temperature times it is the
        change of the free energy.
    """

    seconds_s: float
    sweeps: int
    temperature_ticks: int
    population: int
    energy_min_ticks: int
    energy_q25_ticks: int
    energy_median_ticks: int
    energy_q75_ticks: int
    energy_max_ticks: int
    attempted_M: tuple[int, ...]
    accepted_M: tuple[int, ...]
    culled_fraction: float
    num_families: int
    family_entropy: float
    rho_t: float
    log_partition: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealResult:
    """The best layout found, and how it was found.

    Parameters
    ----------
    best
        Feasible; never worse than the best start.
    j_ticks, unit_ticks
        J = j_ticks / unit_ticks, exact.
    bound_ticks
        The lower bound that was given; 0 for none.
    history
        The best J over time, the start first.
    temperatures
        Statistics of each temperature; empty when switched off.
    population, engine, seed
        How the run was made.
    start_used
        Index of the best start, which the result is not worse than.
    sweeps, attempted_moves
        Whole sweeps per replica; moves of all replicas.
    seconds_s
        How long it took, without loading the engine's code.
    termination
        "bound met", "sweep limit", "time limit", "stop criterion", "nothing to move" or
        "process lost" (of a distributed run).
    """

    best: Layout
    j_ticks: int
    unit_ticks: int
    bound_ticks: int
    history: tuple[HistoryPoint, ...]
    temperatures: tuple[TemperatureStatistics, ...]
    population: int
    engine: str
    seed: int
    start_used: int
    sweeps: int
    attempted_moves: int
    seconds_s: float
    termination: str

    @property
    def j(self) -> float:
        """J as a number; 1 is perfect balance."""
        return self.j_ticks / self.unit_ticks

    def to_csv(self, path: Path) -> None:
        """Write the statistics: a line per temperature, a column per kind of move."""
        write_csv(self.temperatures, path)


def write_csv(rows: Sequence[TemperatureStatistics], path: Path) -> None:
    """Write statistics as a table whose columns are their fields."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for k, row in enumerate(rows):
            cells: dict[str, object] = {}
            for field in fields(row):
                value = getattr(row, field.name)
                if isinstance(value, tuple):
                    cells |= {f"{field.name}_{i}": v for i, v in enumerate(value)}
                else:
                    cells[field.name] = value
            if k == 0:
                writer.writerow(cells)
            writer.writerow(cells.values())
