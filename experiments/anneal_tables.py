"""Tables of the annealing study.

"Best known" is the smallest J of a case over all runs of all methods. A gap to it is
J / best known - 1, in percent. Columns "at x s" are medians over seeds.
"""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import product

from experiments.runner import RunRecord
from experiments.tables import Row

ANNEALING, CHAIN, RESTARTS = "annealing", "population 1", "restarts"
BASELINES, CP_SAT = "baselines", "CP-SAT"
SEARCHES = (ANNEALING, CHAIN, RESTARTS)
WARM = {"other placement": "warm, placement", "other samples": "warm, samples"}
LEVELS_PERCENT = (2, 1)
STOPS = ("0.1 s", "1 s", "10 s")


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
        self,
        name: str | None = None,
        method: str | None = None,
        stop: str | None = None,
    ) -> list[RunRecord]:
        """Return the runs that match whatever is given."""
        wanted = {"instance": name, "method": method, "stop": stop}
        given = {key: value for key, value in wanted.items() if value is not None}
        return [r for r in self.records if given.items() <= r.items()]

    def gap(self, record: RunRecord) -> float:
        """Return a run's gap to the best known, in percent."""
        return 100 * (record["objective"] / self.best[record["instance"]] - 1)

    def spread(self, name: str, method: str, stop: str) -> str:
        """Return the median gap of runs and its range; empty without runs."""
        gaps = sorted(map(self.gap, self(name, method, stop)))
        if not gaps:
            return ""
        return f"{statistics.median(gaps):.2f} ({gaps[0]:.2f} to {gaps[-1]:.2f})"

    def median(self, name: str, method: str, stop: str) -> str:
        """Return the median J of runs; empty without runs."""
        j = [run["objective"] for run in self(name, method, stop)]
        return f"{statistics.median(j):.4f}" if j else ""

    def seeds(self, name: str, method: str) -> str:
        """Return how many seeds each time limit has."""
        count = Counter(run["stop"] for run in self(name, method))
        return ", ".join(f"{count[stop]}" for stop in STOPS if count[stop])

    def populations(self, name: str, method: str) -> str:
        """Return the population at each time limit."""
        size = {r["stop"]: r["metrics"]["population"] for r in self(name, method)}
        return ", ".join(f"{size[stop]}" for stop in STOPS if stop in size)

    def proven_gap(self, name: str) -> float:
        """Return the gap of the best known to the largest lower bound, in percent."""
        return 100 * (self.best[name] / self.bound(name) - 1)

    def bound(self, name: str) -> float:
        """Return the largest lower bound on J."""
        return max(r["metrics"]["bound"] for r in self(name))


def all_tables(found: Records, generated: Collection[str]) -> dict[str, list[Row]]:
    """Return every table by name; those without runs are empty."""
    names = list(dict.fromkeys(record["instance"] for record in found.records))
    windows = [name for name in names if name not in generated]
    others = [name for name in names if name in generated]
    return {
        "quality": quality(found, windows),
        "generated": generated_cases(found, others),
        "target": target(found, windows),
        "population": population(found, windows) + population(found, others),
        "cp_sat": cp_sat(found, names),
        "warm": warm(found, windows),
    }


def quality(found: Records, names: Sequence[str]) -> list[Row]:
    """Annealing's median gap to the best known, and its range over seeds."""
    return [
        {
            "window": name,
            "best baseline": f"{baseline['objective']:.4f}",
            **{
                f"gap at {stop}, %": found.spread(name, ANNEALING, stop)
                for stop in STOPS
            },
            "seeds": found.seeds(name, ANNEALING),
            "population": found.populations(name, ANNEALING),
            "best known": f"{found.best[name]:.4f}",
            "bound": f"{found.bound(name):.4f}",
            "gap to bound, %": f"{found.proven_gap(name):.2f}",
        }
        for name in names
        for baseline in found(name, BASELINES)
    ]


def generated_cases(found: Records, names: Sequence[str]) -> list[Row]:
    """Each search's median gap to the best known at 1 s."""
    return [
        {
            "case": name,
            "ranks x rows": f"{size['ranks']} x {size['rows']}",
            "fill": f"{size['fill']:.3f}",
            "best baseline": f"{baseline['objective']:.4f}",
            **{f"{m}, gap %": found.spread(name, m, "1 s") for m in SEARCHES},
            "population": found.populations(name, ANNEALING),
            "best known": f"{found.best[name]:.4f}",
            "bound": f"{found.bound(name):.4f}",
        }
        for name in names
        for baseline in found(name, BASELINES)
        for size in (baseline["metrics"],)
    ]


def target(found: Records, names: Collection[str]) -> list[Row]:
    """Shares of (window, seed) pairs near the best known and below every baseline."""
    rows = []
    for method, stop in product(SEARCHES, STOPS):
        runs = [r for r in found(None, method, stop) if r["instance"] in names]
        if not runs:
            continue
        gaps = [found.gap(run) for run in runs]
        better = [
            run["objective"] < baseline["objective"]
            for run in runs
            for baseline in found(run["instance"], BASELINES)
        ]
        rows.append(
            {
                "method": method,
                "limit": stop,
                "pairs": len(runs),
                **{
                    f"within {level} %": _share(gap <= level for gap in gaps)
                    for level in LEVELS_PERCENT
                },
                "worst gap, %": f"{max(gaps):.2f}",
                "below every baseline": _share(better),
            }
        )
    return rows


def population(found: Records, names: Sequence[str]) -> list[Row]:
    """Each search against one chain of the same seed and time."""
    rows = []
    for method, stop in product((ANNEALING, RESTARTS), STOPS):
        ratios = [
            run["objective"] / chain["objective"]
            for name in names
            for run in found(name, method, stop)
            for chain in found(name, CHAIN, stop)
            if chain["seed"] == run["seed"]
        ]
        if ratios:
            rows.append(
                {
                    "method": method,
                    "cases": f"{names[0]} to {names[-1]}",
                    "limit": stop,
                    "pairs": len(ratios),
                    "J / J of population 1": f"{statistics.geometric_mean(ratios):.5f}",
                    "range": f"{min(ratios):.4f} to {max(ratios):.4f}",
                    "better": sum(ratio < 1 for ratio in ratios),
                    "worse": sum(ratio > 1 for ratio in ratios),
                }
            )
    return rows


def cp_sat(found: Records, names: Sequence[str]) -> list[Row]:
    """CP-SAT beside its hint and the annealing."""
    rows = []
    for name in names:
        for peer, baseline in product(found(name, CP_SAT), found(name, BASELINES)):
            metrics = peer["metrics"]
            j = peer["objective"]
            rounding = metrics.get("rounding")
            rows.append(
                {
                    "case": name,
                    "hint": f"{baseline['objective']:.4f}",
                    "CP-SAT": "none" if j is None else f"{j:.4f}",
                    "CP-SAT's bound": f"{metrics['cp_bound']:.4f}",
                    "volume bound": f"{metrics['bound']:.4f}",
                    "rounding": "" if rounding is None else f"{rounding:.1e}",
                    "model, s": f"{metrics['build_s']:.1f}",
                    "CPU s": f"{metrics['cpu_share'] * peer['runtime_s']:.0f}",
                    "annealing, 1 s": found.median(name, ANNEALING, "1 s"),
                }
            )
    return rows


def warm(found: Records, names: Sequence[str]) -> list[Row]:
    """What the layout of an earlier plan buys, in gap to the best known."""
    rows = []
    stops = dict.fromkeys(r["stop"] for m in WARM.values() for r in found(None, m))
    for name, (kind, method) in product(names, WARM.items()):
        runs = found(name, method)
        if not runs:
            continue
        start = 100 * (runs[0]["metrics"]["start"] / found.best[name] - 1)
        row = {"window": name, "earlier plan": kind, "its layout, %": f"{start:.2f}"}
        for stop in stops:
            row[f"cold at {stop}, %"] = found.spread(name, ANNEALING, stop)
            row[f"warm at {stop}, %"] = found.spread(name, method, stop)
        rows.append(row)
    return rows


def _share(hits: Iterable[bool]) -> str:
    known = list(hits)
    return f"{100 * sum(known) / len(known):.0f} %" if known else ""
