"""Bin packing files: the plain BPPLIB form and tables of instances.

*BPPLIB*: whole numbers separated by white space: n, capacity, then n sizes (M. Delorme,
M. Iori and S. Martello, "BPPLIB: a library for bin packing and cutting stock problems",
2018).

*Table*: tab-separated with the header `name n capacity lb ub items`; `items` are
separated by spaces, lb and ub are the best known bounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.packing.instance import PackingInstance

_HEADER = ["name", "n", "capacity", "lb", "ub", "items"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinPacking:
    """One instance of a file, with the bounds that the file claims (None: none)."""

    name: str
    instance: PackingInstance
    known_lower: int | None = None
    known_upper: int | None = None


def read_bin_packing(path: AnyPath) -> list[BinPacking]:
    """Return the instances of a file in either form.

    Raises
    ------
    FileFormatError
        When the file cannot be read, is of neither form, or counts disagree.
    """
    with reading(path):
        text = Path(path).read_text(encoding="ascii")
        lines = text.splitlines()
        if lines and lines[0].split("\t") == _HEADER:
            return list(_from_table(lines[1:]))
        return [_from_numbers(Path(path).stem, text)]


def _from_numbers(name: str, text: str) -> BinPacking:
    numbers = [_whole(word) for word in text.split()]
    if len(numbers) < 3 or len(numbers) != numbers[0] + 2:
        raise FileFormatError(
            f"{len(numbers)} numbers; n, capacity and n sizes are needed"
            + (f" (n = {numbers[0]})" if numbers else "")
        )
    instance = PackingInstance(weight_I=np.array(numbers[2:]), capacity=numbers[1])
    return BinPacking(name=name, instance=instance)


def _from_table(lines: list[str]) -> Iterator[BinPacking]:
    for line in lines:
        cells = line.split("\t")
        if len(cells) != len(_HEADER):
            raise FileFormatError(
                f"a line has {len(cells)} columns, not {len(_HEADER)}"
            )
        name, *numbers, items = cells
        count, capacity, lower, upper = (_whole(word) for word in numbers)
        sizes = [_whole(word) for word in items.split()]
        if len(sizes) != count:
            raise FileFormatError(f"{name} has {len(sizes)} items, n = {count}")
        yield BinPacking(
            name=name,
            instance=PackingInstance(weight_I=np.array(sizes), capacity=capacity),
            known_lower=lower,
            known_upper=upper,
        )


def _whole(word: str) -> int:
    if not word.isdigit() or len(word) > 18:
        raise FileFormatError(f"{word[:20]!r} is not a whole number")
    return int(word)
