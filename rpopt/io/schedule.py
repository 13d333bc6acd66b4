"""The schedule a user trains with today, to be put beside a plan."""

from pathlib import Path

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.io.jsonfile import parse_json
from rpopt.io.writers.micro_batches import SCHEMA


def read_schedule(path: AnyPath) -> list[list[list[int]]]:
    """Return micro-batches of sample ids, indexed by DP rank and row.

    The file is JSON: `{"micro_batches": [[[0, 5], [3]], [[1], [2, 4]]]}` holds two
    ranks of two rows. What `rpopt export micro-batches` wrote is one too.

    Raises
    ------
    FileFormatError
        When the file cannot be read or is not of this form.
    """
    with reading(path):
        whole = parse_json(Path(path).read_bytes())
        if not isinstance(whole, dict) or "micro_batches" not in whole:
            raise FileFormatError('needs the key "micro_batches"')
        if len(whole) > 1 and whole.get("schema") != SCHEMA:
            raise FileFormatError(
                'has more than the one key "micro_batches", and its schema'
                f" {whole.get('schema')!r} is not {SCHEMA!r}"
            )
        ranks = whole["micro_batches"]
        if not _is_nested_ints(ranks, depth=3):
            raise FileFormatError(
                "micro_batches must be lists of sample ids as"
                " micro_batches[rank][row], such as [[[0, 5], [3]], [[1], [2, 4]]]"
            )
        return list(ranks)


def _is_nested_ints(value: object, depth: int) -> bool:
    if depth == 0:
        return type(value) is int
    return isinstance(value, list) and all(
        _is_nested_ints(item, depth - 1) for item in value
    )
