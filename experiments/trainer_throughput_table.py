"""The tables of the throughput study, from the records of its windows.

A gain is a ratio within one repeat, whose steps ran one right after the other, of the
seconds of all windows of a case: what a run that trains them in turn would see. Tables
give the median over the repeats, and the smallest and largest.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments.runner import RunRecord
from experiments.trainer_throughput_cases import (
    BASELINE,
    BOTH,
    METHODS,
    PACKING,
    REROUTING,
)

Row = dict[str, Any]
Windows = Sequence[RunRecord]
PATH, WALL = "path_s", "wall_s"
MEASURES = {PATH: "critical path", WALL: "wall clock"}


def by_case(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group the records of windows by their case."""
    cases: dict[str, list[RunRecord]] = {}
    for record in records:
        cases.setdefault(record["instance"], []).append(record)
    return cases


def measures_of(windows: Windows) -> list[str]:
    """Return what was measured: the wall clock needs a core per rank."""
    return [WALL, PATH] if windows[0]["metrics"]["is_unshared"] else [PATH]


def seconds(windows: Windows, method: str, measure: str) -> list[float]:
    """Return the seconds of all windows, by repeat."""
    each = [record["metrics"]["methods"][method][measure] for record in windows]
    return [sum(repeat) for repeat in zip(*each, strict=True)]


def gains(windows: Windows, before: str, after: str, measure: str) -> list[float]:
    """Return by how much more tokens a method trains per second, by repeat."""
    return [
        slow / fast - 1
        for slow, fast in zip(
            seconds(windows, before, measure),
            seconds(windows, after, measure),
            strict=True,
        )
    ]


def published_form(records: Sequence[RunRecord]) -> list[Row]:
    """Return gains in token throughput: rerouting, + packing, overall."""
    rows = []
    for case, windows in by_case(records).items():
        tokens = sum(record["metrics"]["tokens"] for record in windows)
        for measure in measures_of(windows):
            base_s = statistics.median(seconds(windows, BASELINE, measure))

            def gain(
                before: str, after: str, windows: Windows = windows, m: str = measure
            ) -> str:
                return spread(gains(windows, before, after, m), "{:+.2%}".format)

            rows.append(
                {
                    "dp x ep": case,
                    "measured": MEASURES[measure],
                    "baseline, tokens/s": round(tokens / base_s),
                    "rerouting": gain(BASELINE, REROUTING),
                    "+ packing": gain(REROUTING, BOTH),
                    "overall": gain(BASELINE, BOTH),
                    "packing alone": gain(BASELINE, PACKING),
                }
            )
    return rows


def predictions(records: Sequence[RunRecord]) -> list[Row]:
    """Return the cost model's numbers beside the measured ones."""
    rows = []
    for case, windows in by_case(records).items():
        for measure in measures_of(windows):
            for method in METHODS[1:]:
                measured = statistics.median(gains(windows, BASELINE, method, measure))
                predicted = predicted_gain(windows, method)
                typical_s = [
                    _total_s(windows, name, "typical_s") for name in (BASELINE, method)
                ]
                rows.append(
                    {
                        "dp x ep": case,
                        "measured": MEASURES[measure],
                        "method": method,
                        "gain measured": f"{measured:+.2%}",
                        "medians of parts": f"{typical_s[0] / typical_s[1] - 1:+.2%}"
                        if measure == PATH
                        else "",
                        "predicted": f"{predicted:+.2%}",
                        "error, points": f"{100 * (predicted - measured):+.2f}",
                    }
                )
    return rows


def predicted_gain(windows: Windows, method: str, what: str = "predicted_s") -> float:
    """Return the gain under the cost model; of a bound, with `what` = "bound_s"."""
    base_s = _total_s(windows, BASELINE, "predicted_s")
    return base_s / _total_s(windows, method, what) - 1


def limits(records: Sequence[RunRecord]) -> list[Row]:
    """Return what could be gained: how unbalanced the baseline is, and the rest."""
    rows = []
    for case, windows in by_case(records).items():
        row: Row = {"dp x ep": case, "rows": _rows_used(windows)}
        parts = [r["metrics"]["methods"][BASELINE]["expert_share"] for r in windows]
        row["expert share"] = f"{statistics.fmean(parts):.3f}"
        for method in (BASELINE, BOTH):
            ideal_s = _total_s(windows, method, "ideal_s")
            row[f"J, {method}"] = round(
                _total_s(windows, method, "predicted_s") / ideal_s, 3
            )
            row[f"path / mean rank, {method}"] = round(
                statistics.median(_imbalance(windows, method)), 3
            )
        row["most by the bound"] = f"{predicted_gain(windows, BOTH, 'bound_s'):+.2%}"
        rows.append(row)
    return rows


def spread(values: Sequence[float], write: Callable[[float], str]) -> str:
    """Return "median (smallest to largest)"."""
    middle = write(statistics.median(values))
    return f"{middle} ({write(min(values))} to {write(max(values))})"


def _total_s(windows: Windows, method: str, what: str) -> float:
    return sum(record["metrics"]["methods"][method][what] for record in windows)


def _imbalance(windows: Windows, method: str) -> list[float]:
    """Return the critical path over the mean rank's CPU seconds, by repeat."""
    paths = seconds(windows, method, PATH)
    return [
        path / mean
        for path, mean in zip(paths, seconds(windows, method, "mean_s"), strict=True)
    ]


def _rows_used(windows: Windows) -> str:
    return ", ".join(str(record["metrics"]["rows"]) for record in windows)
