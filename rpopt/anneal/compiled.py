"""The compiled CPU engine: a population of layouts, threads sharing out the replicas.

Axis letters: as in `rpopt.anneal.tables`; T threads, M kinds of moves.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from rpopt.anneal import kernel
from rpopt.anneal.moves import Kind
from rpopt.anneal.run import ByteArray
from rpopt.anneal.tables import Geometry, sums
from rpopt.layout.instance import LayoutInstance
from rpopt.records import Int64Array, IntArray

_CACHE_LINES = 16  # int64 numbers in two lines: threads must not write to one line


class CompiledEngine:
    """Replicas of an instance in plain arrays, advanced by `kernel.run`.

    Parameters
    ----------
    geometry
        The instance.
    start_AI
        Cells of the starts, in the engines' item order.
    start_B
        The start of each replica.
    key_B
        Random key of each replica, uint64.
    threads
        How many threads share the replicas; the result does not depend on it.
    """

    name = "compiled"

    def __init__(
        self,
        geometry: Geometry,
        start_AI: IntArray,
        start_B: Int64Array,
        key_B: np.ndarray,
        *,
        threads: int,
    ) -> None:
        self._tables, self._key_B = geometry.tables, key_B
        self._state = _state(geometry, start_AI, start_B)
        self._mean_shift = geometry.tables.mean_shift
        self.num_items = geometry.tables.num_items
        self.replica_bytes = sum(array[:1].nbytes for array in self._state)
        num_slices = max(1, min(threads, start_B.size))
        ends = [start_B.size * t // num_slices for t in range(num_slices + 1)]
        self._slices = list(pairwise(ends))
        apart = np.zeros((num_slices, _CACHE_LINES), dtype=np.int64)
        self._accepted_TM = apart[:, : len(Kind)]
        self._pool = ThreadPoolExecutor(num_slices) if num_slices > 1 else None

    def run(self, temperature: int, first: int, count: int) -> None:
        """Attempt moves `first` to `first + count` in every replica."""
        jobs = [
            (
                self._tables, self._state, self._key_B, lo, hi, temperature, first,
                count, accepted_M,
            )
            for (lo, hi), accepted_M in zip(
                self._slices, self._accepted_TM, strict=True
            )
        ]  # fmt: skip
        if self._pool is None:
            kernel.run(*jobs[0])
        else:
            for done in [self._pool.submit(kernel.run, *job) for job in jobs]:
                done.result()

    def energies(self) -> Int64Array:
        """Return the energy of each replica."""
        return self._state.sums_B2[:, 0].copy()

    def copy(self, parent_B: Sequence[int]) -> None:
        """Replace each replica by its parent; a parent stays where it is."""
        for child, parent in enumerate(parent_B):
            if child != parent:
                for array in self._state:
                    array[child] = array[parent]

    def pack(self, replica: int) -> ByteArray:
        """Return one replica's state."""
        parts = [array[replica].reshape(-1).view(np.uint8) for array in self._state]
        return np.concatenate(parts)

    def unpack(self, replica: int, data: ByteArray) -> None:
        """Replace one replica's state."""
        first = 0
        for array in self._state:
            part = array[replica]
            bytes_ = data[first : first + part.nbytes]
            part[...] = bytes_.view(part.dtype).reshape(part.shape)
            first += part.nbytes

    def slowest(self) -> Int64Array:
        """Return J of each replica, in ticks."""
        energy_B, total_B = self._state.sums_B2.T
        slowest_B: Int64Array = energy_B - (total_B >> self._mean_shift)
        return slowest_B

    def cells(self, replica: int) -> IntArray:
        """Return the cells of one replica [I]."""
        return self._state.cell_BI[replica].copy()

    def accepted(self) -> Int64Array:
        """Return how many moves of each kind were accepted so far, [M]."""
        return self._accepted_TM.sum(axis=0)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _state(geometry: Geometry, start_AI: IntArray, start_B: Int64Array) -> kernel.State:
    """Return the replicas' arrays; equal starts are summed once."""
    known = sums(geometry.tables, start_AI)
    links = [_linked(cell_I, geometry) for cell_I in start_AI]
    next_AI, head_AK = (np.array(v) for v in zip(*links, strict=True))
    return kernel.State(
        cell_BI=start_AI[start_B].astype(geometry.cell_dtype),
        next_BI=next_AI[start_B],
        head_BK=head_AK[start_B],
        size_BKH=known.size_BKH[start_B],
        attention_BKC=known.attention_BKC[start_B],
        load_BGX=known.load_BGX[start_B].astype(geometry.load_dtype),
        expert_BG=known.expert_BG[start_B],
        ticks_BG=known.ticks_BG[start_B],
        entry_BV=known.entry_BV[start_B],
        sums_B2=np.stack([known.energy_B, known.total_B], axis=1)[start_B],
    )


def _linked(cell_I: IntArray, geometry: Geometry) -> tuple[IntArray, IntArray]:
    """Return the linked lists of the items of each cell."""
    next_I = np.full(cell_I.size, -1, dtype=geometry.cell_dtype)
    head_K = np.full(geometry.instance.num_cells, -1, dtype=geometry.cell_dtype)
    for item, cell in enumerate(cell_I):
        next_I[item], head_K[cell] = head_K[cell], item
    return next_I, head_K


def load(*, wide: bool) -> None:
    """Compile the loop, or load it from the cache, by a run without moves."""
    tiny = LayoutInstance(
        weight_I=np.ones(2, dtype=np.int64),
        num_samples_I=np.ones(2, dtype=np.int64),
        attention_ticks_IC=np.ones((2, 1), dtype=np.int64),
        load_ILP=np.ones((2, 1, 1), dtype=np.int32),
        layer_weight_ticks_L=np.ones(1, dtype=np.int64),
        offset_ticks=0,
        unit_ticks=1,
        num_rows=1,
        token_cap=1,
        shard_of_rank_D=np.zeros(2, dtype=np.int64),
    )
    key_B, start_B = np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.int64)
    geometry, start_AI = Geometry(tiny, wide=wide), np.array([[0, 1]])
    CompiledEngine(geometry, start_AI, start_B, key_B, threads=1).run(0, 0, 0)
