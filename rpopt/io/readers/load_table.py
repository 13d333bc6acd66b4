"""Tables of expert load: a CSV file, or the JSON that SGLang can be started with.

A CSV file has one line per layer and one whole number per expert: the weight [L, E]
that DeepSeek's EPLB takes. A first line of names is passed over; where its first name
is `layer`, the first column is the number of the layer.
"""

import csv
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath
from rpopt.io.jsonfile import parse_json
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import Counts, reader
from rpopt.io.readers.sglang_recorder import passes
from rpopt.io.route_counts import layer_numbers


@reader
def read_csv(path: AnyPath, model: RoutedModel | None) -> Iterator[Counts]:
    """Yield the one table of a file.

    Raises
    ------
    FileFormatError
        When a line is short or holds anything but whole numbers.
    """
    opened = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            lines = [line for line in csv.reader(file) if any(map(str.strip, line))]
    except csv.Error as error:
        raise FileFormatError(f"is no CSV file ({error})") from error
    has_names = bool(lines) and not _is_whole(lines[0][-1])
    numbered = has_names and lines[0][0].strip().lower() == "layer"
    width = len(lines[0]) if lines else 0
    table = [
        _numbers(line, number, width)
        for number, line in enumerate(lines)
        if number or not has_names
    ]
    if not table:
        raise FileFormatError("has no line of numbers")
    if not numbered:
        yield Counts(np.array(table))
        return
    layers = layer_numbers([line[0] for line in table])
    yield Counts(np.array([line[1:] for line in table]), layers)


@reader
def read_json_counts(path: AnyPath, model: RoutedModel | None) -> Iterator[Counts]:
    """Yield the passes of a file with the one key `logical_count`.

    Raises
    ------
    FileFormatError
        When the file is damaged or has other keys.
    """
    value = parse_json(Path(path).read_bytes())
    if not isinstance(value, dict) or set(value) != {"logical_count"}:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise FileFormatError(f"needs the one key 'logical_count' (found: {found})")
    yield from passes(np.asarray(value["logical_count"]))


def _is_whole(cell: str) -> bool:
    return re.fullmatch(r"\s*-?[0-9]{1,18}\s*", cell) is not None


def _numbers(line: list[str], number: int, width: int) -> list[int]:
    wrong = [cell for cell in line if not _is_whole(cell)]
    if wrong or len(line) != width:
        reason = (
            f"holds {wrong[0][:20]!r}, no whole number"
            if wrong
            else f"has {len(line)} cells, the first one {width}; is the file cut off?"
        )
        raise FileFormatError(f"line {number + 1} {reason}")
    return [int(cell) for cell in line]
