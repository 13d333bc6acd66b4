"""What commands print: aligned tables or JSON on stdout, progress on stderr."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from rpopt.errors import InstanceError
from rpopt.topology import Topology


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print records as JSON, or as one aligned table with the keys as header."""
    if as_json:
        print(json.dumps(list(rows), indent=1))
    elif rows:
        print(table([list(rows[0]), *([text(v) for v in r.values()] for r in rows)]))


def print_sections(
    sections: Mapping[str, Sequence[Mapping[str, Any]]], *, as_json: bool
) -> None:
    """Print several tables under their titles, or one JSON object."""
    if as_json:
        print(json.dumps(sections, indent=1))
        return
    for title, rows in sections.items():
        print(f"# {title}")
        print_rows(rows, as_json=False)
        print()


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as text with aligned columns, the first line a header."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    numeric = [
        all(_is_number(line[i]) for line in lines[1:]) for i in range(len(widths))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def text(value: Any) -> str:
    """Return a table cell: floats with four decimals, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def progress(items: Sequence[Any], *, quiet: bool, what: str) -> tqdm:
    """Return a progress bar over items on stderr, off when it is not a terminal."""
    off = quiet or not sys.stderr.isatty()
    return tqdm(items, desc=what, disable=off, file=sys.stderr)


def log_notes(topology: Topology) -> None:
    """Log what a reader of J must know."""
    for note in topology.notes():
        logging.getLogger(__name__).info("note: %s", note)


def require_distinct(names: Sequence[str], what: str) -> None:
    """Raise an `InstanceError` when outputs of one name would overwrite each other."""
    for name in names:
        if names.count(name) > 1:
            raise InstanceError(
                f"{names.count(name)} inputs are called {name!r} and would overwrite"
                f" each other's {what}; rename them, or give them one at a time"
            )


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.strip("+-%x").replace(".", "", 1).isdigit()
