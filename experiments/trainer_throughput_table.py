"""The tables of the throughput study, from the records of its windows.

A gain is a ratio within one repeat, whose steps ran one right after the other, of the
seconds of all windows of a case: what a run that trains them in turn would see. Tables
give the median over the repeats, and the smallest and largest.
"""

import statistics
from collections.abc import Sequence
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
    return [
        {
            "dp x ep": case,
            "measured": MEASURES[measure],
            "baseline, tokens/s": round(tokens_per_s(windows, BASELINE, measure)),
            "rerouting": spread(gains(windows, BASELINE, REROUTING, measure)),
            "+ packing": spread(gains(windows, REROUTING, BOTH, measure)),
            "overall": spread(gains(windows, BASELINE, BOTH, measure)),
            "packing alone": spread(gains(windows, BASELINE, PACKING, measure)),
        }
        for case, windows in by_case(records).items()
        for measure in measures_of(windows)
    ]


def predictions(records: Sequence[RunRecord]) -> list[Row]:
    """Return the cost model's gains beside the measured ones."""
    return [
        _prediction(case, windows, measure, method)
        for case, windows in by_case(records).items()
        for measure in measures_of(windows)
        for method in METHODS[1:]
    ]


def _prediction(case: str, windows: Windows, measure: str, method: str) -> Row:
    measured = statistics.median(gains(windows, BASELINE, method, measure))
    typical = modelled_gain(windows, method, "typical_s", "typical_s")
    predicted = modelled_gain(windows, method)
    return {
        "dp x ep": case,
        "measured": MEASURES[measure],
        "method": method,
        "gain": f"{measured:+.2%}",
        "gain of typical parts": f"{typical:+.2%}" if measure == PATH else "",
        "predicted": f"{predicted:+.2%}",
        "error, points": f"{100 * (predicted - measured):+.2f}",
    }


def modelled_gain(
    windows: Windows, method: str, of: str = "predicted_s", than: str = "predicted_s"
) -> float:
    """Return the gain in seconds `of` a method over the baseline's seconds `than`."""
    return _total_s(windows, BASELINE, than) / _total_s(windows, method, of) - 1


def limits(records: Sequence[RunRecord]) -> list[Row]:
    """Return what could be gained: how unbalanced steps are, predicted and measured."""
    return [_limit(case, windows) for case, windows in by_case(records).items()]


def _limit(case: str, windows: Windows) -> Row:
    shares = [r["metrics"]["methods"][BASELINE]["expert_share"] for r in windows]
    ideal_s = _total_s(windows, BASELINE, "ideal_s")
    most = modelled_gain(windows, BOTH, "bound_s")
    return {
        "dp x ep": case,
        "rows": ", ".join(str(record["metrics"]["rows"]) for record in windows),
        "expert share": f"{statistics.fmean(shares):.3f}",
        "J, baseline": f"{_total_s(windows, BASELINE, 'predicted_s') / ideal_s:.3f}",
        "measured": f"{imbalance(windows, BASELINE):.3f}",
        "J, plan": f"{_total_s(windows, BOTH, 'predicted_s') / ideal_s:.3f}",
        "plan measured": f"{imbalance(windows, BOTH):.3f}",
        "J, bound": f"{_total_s(windows, BOTH, 'bound_s') / ideal_s:.3f}",
        "most by the bound": f"{most:+.2%}",
    }


def imbalance(windows: Windows, method: str) -> float:
    """Return the critical path over the mean rank's CPU seconds, as J measured."""
    paths, means = (seconds(windows, method, what) for what in (PATH, "mean_s"))
    return statistics.median(p / m for p, m in zip(paths, means, strict=True))


def tokens_per_s(windows: Windows, method: str, measure: str) -> float:
    """Return the trained tokens per second, median over the repeats."""
    tokens = sum(record["metrics"]["tokens"] for record in windows)
    return tokens / statistics.median(seconds(windows, method, measure))


def spread(shares: Sequence[float]) -> str:
    """Return "median (smallest to largest)" in percent."""
    middle = statistics.median(shares)
    return f"{middle:+.2%} ({min(shares):+.2%} to {max(shares):+.2%})"


def _total_s(windows: Windows, method: str, what: str) -> float:
    return sum(record["metrics"]["methods"][method][what] for record in windows)
