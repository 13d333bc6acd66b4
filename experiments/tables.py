"""Tables: records to CSV, CSV to Markdown, Markdown into marked blocks of documents.

    python -m experiments.tables README.md docs/benchmarks.md [--check]

fills each `<!-- table:NAME -->...<!-- /table:NAME -->` of the documents from
experiments/results/NAME.csv; with --check it only says which ones differ.
"""

import argparse
import csv
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rpopt.errors import FileFormatError, InstanceError, RpoptError

Row = dict[str, Any]

RESULTS = Path(__file__).resolve().parent / "results"
_BLOCK = re.compile(r"^<!-- table:(\S+) -->\n.*?^<!-- /table:\1 -->$", re.DOTALL | re.M)
_MARK = re.compile(r"^<!-- /?table:\S+ -->", re.M)


def shifted_geometric_mean(values: Sequence[float], shift: float = 10.0) -> float:
    """Return exp(mean(log(v + shift))) - shift, which tiny values do not dominate."""
    if min(values) + shift <= 0:
        raise InstanceError(
            f"a shifted geometric mean needs values above {-shift:g}; the smallest is"
            f" {min(values):g}"
        )
    return math.exp(statistics.fmean(math.log(v + shift) for v in values)) - shift


def aggregate(
    records: Iterable[Mapping[str, Any]], *, by: Sequence[str], values: Sequence[str]
) -> list[Row]:
    """Return one row per group of records, in the order in which groups appear.

    Parameters
    ----------
    records
        Run records.
    by
        The keys that a group shares; "params.x" reaches into a nested one.
    values
        The keys to summarise: count, median, quartiles, and shifted geometric mean
        (shift 10). Records that hold None there are left out of these, so a count
        below `runs` says that something is missing.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(_get(record, key) for key in by), []).append(record)
    return [
        {
            **dict(zip(by, names, strict=True)),
            "runs": len(group),
            **{
                column: number
                for value in values
                for column, number in _summary(group, value).items()
            },
        }
        for names, group in groups.items()
    ]


def _get(record: Mapping[str, Any], key: str) -> Any:
    value: Any = record
    for part in key.split("."):
        value = value[part]
    return value


def _summary(group: Sequence[Mapping[str, Any]], key: str) -> Row:
    numbers = [v for record in group if (v := _get(record, key)) is not None]
    names = [f"{key}_{part}" for part in ("count", "median", "q1", "q3", "sgm10")]
    if not numbers:
        return dict(zip(names, (0, None, None, None, None), strict=True))
    if len(numbers) == 1:
        q1 = median = q3 = numbers[0]
    else:
        q1, median, q3 = statistics.quantiles(numbers, n=4, method="inclusive")
    mean = shifted_geometric_mean(numbers)
    return dict(zip(names, (len(numbers), median, q1, q3, mean), strict=True))


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with equal keys; floats with six significant digits."""
    if not rows:
        raise InstanceError(f"no rows for {path}; run the experiment first")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _cell(value) for key, value in row.items()})


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def markdown(path: Path) -> str:
    """Return a CSV file as a Markdown table; columns of numbers are aligned right."""
    if not path.exists():
        raise FileFormatError(
            f"there is no {path}; run the experiment that writes it, or drop the block"
        )
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    rules = [
        "---:" if all(_is_number(cell) for cell in column) else "---"
        for column in zip(*rows, strict=True)
    ]
    lines = [header, rules or ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in lines)


def _escape(cell: str) -> str:
    return cell.replace("|", r"\|")


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def fill_blocks(text: str, results: Path) -> str:
    """Return a document with every marked block filled from `results`/NAME.csv."""
    strays = _MARK.findall(_BLOCK.sub("", text))
    if strays:
        raise FileFormatError(
            f"{strays[0]} has no partner on a later or earlier line; write"
            " <!-- table:NAME --> and <!-- /table:NAME --> on lines of their own"
        )

    def block(match: re.Match[str]) -> str:
        name = match[1]
        table = markdown(results / f"{name}.csv")
        return f"<!-- table:{name} -->\n\n{table}\n\n<!-- /table:{name} -->"

    return _BLOCK.sub(block, text)


def update(document: Path, results: Path, *, check: bool) -> bool:
    """Fill a document's blocks unless `check`; return whether it was up to date."""
    text = document.read_text(encoding="utf-8")
    try:
        filled = fill_blocks(text, results)
    except FileFormatError as error:
        raise FileFormatError(f"{document}: {error}") from error
    if filled != text and not check:
        document.write_text(filled, encoding="utf-8")
    return filled == text


def main(argv: Sequence[str] | None = None) -> int:
    """Fill or check the documents; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tables")
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing")
    arguments = parser.parse_args(argv)
    try:
        stale = [
            document
            for document in arguments.documents
            if not update(document, RESULTS, check=arguments.check)
        ]
    except (RpoptError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for document in stale:
        print(f"{document}: {'differs from its CSV' if arguments.check else 'updated'}")
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
