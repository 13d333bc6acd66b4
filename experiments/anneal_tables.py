"""Tables of the annealing study.

"Best known" is the smallest J of a case over all runs of all methods. A gap to it is
J / best known - 1, in percent. Columns "at x s" are medians over seeds.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product

from experiments.runner import RunRecord
from experiments.tables import Row

ANNEALING, CHAIN, RESTARTS = "annealing", "population 1", "restarts"
SEARCHES = (ANNEALING, CHAIN, RESTARTS)
WARM = {"other placement": "warm, placement", "other samples": "warm, samples"}
LEVELS_PERCENT = (2, 1)


class Records:
    """The runs of a study, and the best J known for each case."""

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self.records = records
        self.best: dict[str, float] = {}
        for record in records:
            if (j := record["objective"]) is not None:
                name = record["instance"]
                self.best[name] = min(j, self.best.get(name, math.inf))

    def __call__(
        self, name: str | None = None, method: str | None = None, stop: str | None = None
    ) -> list[RunRecord]:
        """Return the runs that match whatever is given."""
        wanted = {"instance": name, "method": method, "stop": stop}
        given = {key: value for key, value in wanted.items() if value is not None}
        return [r for r in self.records if given.items() <= r.items()]

    def gap(self, record: RunRecord) -> float:
        """Return a run's gap to the best known, in percent."""
        return 100 * (record["objective"] / self.best[record["instance"]] - 1)

    def median_gap(self, runs: Iterable[RunRecord]) -> str:
        """Return the median gap of runs and its range."""
        gaps = sorted(self.gap(run) for run in runs)
        if not gaps:
            return ""
        return f"{statistics.median(gaps):.2f} ({gaps[0]:.2f} to {gaps[-1]:.2f})"

    def bound(self, name: str) -> float:
        """Return the largest lower bound on J."""
        return max(r["metrics"]["bound"] for r in self(name))

    def baseline(self, name: str) -> RunRecord | None:
        """Return the best baseline's run, if it was made."""
        return next(iter(self(name, "baselines")), None)


def all_tables(
    records: Sequence[RunRecord], generated: Collection[str]
) -> dict[str, list[Row]]:
    """Return every table by name; those without runs are empty."""
    found = Records(records)
    names = dict.fromkeys(record["instance"] for record in records)
    windows = [name for name in names if name not in generated]
    others = [name for name in names if name in generated]
    return {
        "quality": list(map_rows(found, windows, ("0.1 s", "1 s", "10 s"))),
        "generated": list(map_rows(found, others, ("1 s",))),
        "target": list(target(found, windows)),
        "population": list(population(found, windows, "windows")),
        "population_generated": list(population(found, others, "generated")),
        "cp_sat": list(cp_sat(found, names)),
        "warm": list(warm(found, names)),
    }
