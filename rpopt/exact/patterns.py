"""Pools of patterns: what a cell may hold, as rows of a sparse matrix.

Axis letters: K item types, Q patterns, M rows of a master problem.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from rpopt.records import BoolArray, Int64Array


class PatternPool:
    """Distinct patterns in the order in which they were found.

    Parameters
    ----------
    num_types
        K.
    """

    def __init__(self, num_types: int) -> None:
        self.num_types = num_types
        self._place: dict[bytes, int] = {}
        self._types: list[Int64Array] = []
        self._counts: list[Int64Array] = []
        self._flat: tuple[Int64Array, Int64Array, Int64Array] | None = None

    def __len__(self) -> int:
        """Return the number of patterns."""
        return len(self._types)

    def __getitem__(self, number: int) -> Int64Array:
        """Return one pattern, shape (K,)."""
        pattern_K = np.zeros(self.num_types, dtype=np.int64)
        pattern_K[self._types[number]] = self._counts[number]
        return pattern_K

    def add(self, pattern_QK: Int64Array) -> int:
        """Add patterns, shape (Q, K); return how many of them are new."""
        return sum(
            self._add(types, pattern_K[types])
            for pattern_K in pattern_QK
            if (types := np.flatnonzero(pattern_K)).size
        )

    def add_cells(self, cells: Iterable[Int64Array]) -> int:
        """Add the patterns of cells; return how many of them are new."""
        return sum(self._add(*np.unique(cell, return_counts=True)) for cell in cells)

    def _add(self, types: Int64Array, counts: Int64Array) -> bool:
        key = types.tobytes() + counts.tobytes()
        if key in self._place:
            return False
        self._place[key] = len(self)
        self._types.append(types)
        self._counts.append(counts)
        self._flat = None
        return True

    def matrix(self, first: int = 0) -> Any:
        """Return the patterns from number `first` on as a sparse matrix, (Q, K)."""
        from scipy.sparse import csr_array

        types, counts = self._types[first:], self._counts[first:]
        if not types:
            return csr_array((0, self.num_types), dtype=np.int64)
        starts = np.concatenate(([0], np.cumsum([t.size for t in types])))
        data = (np.concatenate(counts), np.concatenate(types), starts)
        return csr_array(data, shape=(len(types), self.num_types))

    def fits(self, residual_K: Int64Array) -> BoolArray:
        """Return which patterns a residual demand still has the items for, (Q,)."""
        if self._flat is None:
            sizes = [0, *(t.size for t in self._types[:-1])]
            flat = np.concatenate(self._types), np.concatenate(self._counts)
            self._flat = *flat, np.cumsum(sizes)
        types, counts, starts = self._flat
        lacking = counts > residual_K[types]
        return ~np.logical_or.reduceat(lacking, starts)
