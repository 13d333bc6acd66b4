"""Pools of patterns: what a cell may hold, as rows of a sparse matrix.

Axis letters: K item types, Q patterns, M rows of a master problem.
"""

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

    def __len__(self) -> int:
        """Number of patterns."""
        return len(self._types)

    def add(self, pattern_QK: Int64Array) -> Int64Array:
        """Add patterns, shape (Q, K); return the numbers of the new ones."""
        before = len(self)
        row_Z, type_Z = np.nonzero(pattern_QK)
        count_Z = pattern_QK[row_Z, type_Z]
        cuts = np.searchsorted(row_Z, np.arange(1, len(pattern_QK)))
        pairs = zip(np.split(type_Z, cuts), np.split(count_Z, cuts), strict=True)
        for types, counts in pairs:
            key = types.tobytes() + counts.tobytes()
            if types.size and self._place.setdefault(key, len(self)) == len(self):
                self._types.append(types)
                self._counts.append(counts)
        return np.arange(before, len(self))

    def __getitem__(self, number: int) -> Int64Array:
        """Return one pattern, shape (K,)."""
        pattern_K = np.zeros(self.num_types, dtype=np.int64)
        pattern_K[self._types[number]] = self._counts[number]
        return pattern_K

    def matrix(self, first: int = 0) -> Any:
        """Return the patterns from number `first` on as a sparse matrix, (Q, K)."""
        from scipy.sparse import csr_array

        types, counts = self._types[first:], self._counts[first:]
        indptr = np.concatenate(([0], np.cumsum([t.size for t in types], dtype=int)))
        if not types:
            return csr_array((0, self.num_types), dtype=np.int64)
        shape = (len(types), self.num_types)
        data = (np.concatenate(counts), np.concatenate(types), indptr)
        return csr_array(data, shape=shape)

    def fits(self, residual_K: Int64Array) -> BoolArray:
        """Return which patterns a residual demand still has the items for, (Q,)."""
        sizes = [t.size for t in self._types]
        if not sizes:
            return np.zeros(0, dtype=np.bool_)
        lacking = np.concatenate(self._counts) > residual_K[np.concatenate(self._types)]
        starts = np.cumsum([0, *sizes[:-1]])
        return ~np.logical_or.reduceat(lacking, starts)
