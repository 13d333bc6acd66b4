"""The history of a plan's search as a CSV file: seconds and best J."""

import csv
from collections.abc import Sequence
from pathlib import Path

from rpopt.errors import FileFormatError
from rpopt.io.access import atomic_writer, reading

_COLUMNS = ("seconds", "J")

History = Sequence[tuple[float, float]]
"""Seconds of search and the best J from then on."""


def write_history(path: Path, history: History) -> None:
    """Write a history atomically."""
    lines = [",".join(_COLUMNS), *(f"{s:.6f},{j:.9f}" for s, j in history)]
    with atomic_writer(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def read_history(path: Path) -> History:
    """Read a history.

    Raises
    ------
    FileFormatError
        When the file cannot be read or is no history.
    """
    with reading(path), path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
        if tuple(header) != _COLUMNS:
            raise FileFormatError(
                f"columns {header}, not {list(_COLUMNS)}; give a file that"
                " rpopt plan --save-history wrote"
            )
        return [(float(seconds), float(j)) for seconds, j in rows]
