"""The exact bounded knapsack: the pricing problem of packing, in whole numbers.

Dynamic programme over tokens (and, where they are limited, samples), heaviest item type
first. Instead of one decision per item and token count it keeps a whole table every few
slots, and finds the decisions inside such a block again when a pattern is read back.

Sources: Gilmore and Gomory (1961, 1963) for the pricing problem; Kellerer, Pferschy and
Pisinger, Knapsack Problems (2004), for the programme and for bundling copies.

Axis letters: K item types, T slots, Q patterns.
"""

import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rpopt.errors import InstanceError
from rpopt.exact.item_types import ItemTypes
from rpopt.packing.instance import PackingInstance
from rpopt.records import Int64Array
from rpopt.stop import OutOfTimeError, require_time

MEMORY_LIMIT_BYTES = 2**30
MAX_VALUE = 2**62
_STRIDE = 12
_LONGEST_STRIDE = 18
_WORK_PER_CALL = 2**27  # table entries between two looks at the clock
_FEW_SLOTS, _FEW_ITEMS, _MOST_STEPS = 100, 6, 20_000  # when to search instead


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pricing:
    """What one run of the knapsack gave.

    Parameters
    ----------
    best
        The largest value of a feasible pattern, exact.
    value_Q
        Values of the patterns that were read back, increasing; the last is the best.
    pattern_QK
        Shape (Q, K): items of each type in each pattern, int64.
    """

    best: int
    value_Q: Int64Array
    pattern_QK: Int64Array


def load_kernels(deadline_s: float) -> None:
    """Load the compiled code; the first time ever it is compiled, for seconds.

    Raises
    ------
    OutOfTimeError
        When it is not there by the deadline; compiling goes on in the background.
    """
    thread = threading.Thread(target=_use_kernels)
    thread.start()
    left_s = max(0.0, deadline_s - time.monotonic())
    thread.join(min(left_s, threading.TIMEOUT_MAX))
    if thread.is_alive():
        raise OutOfTimeError


def _use_kernels() -> None:
    """Use every kernel with every type of its arguments once."""
    knapsack = Knapsack(
        ItemTypes.of(PackingInstance(weight_I=np.array([3, 2, 1]), capacity=4))
    )
    for value in (1, 2**32):
        value_K = np.full(3, value)
        knapsack.price(value_K, max_patterns=1)
        knapsack.price(value_K, max_patterns=2)


class Knapsack:
    """The knapsack over the item types of an instance; keeps its memory between runs.

    Parameters
    ----------
    types
        Weights, samples and the capacity.
    deadline_s
        When to give up with an `OutOfTimeError`, on the clock of `time.monotonic`.
    """

    def __init__(self, types: ItemTypes, deadline_s: float = math.inf) -> None:
        self.types = types
        self.deadline_s = deadline_s
        self.seconds_s = 0.0
        self.num_runs = 0
        self._memory = np.empty(0, dtype=np.int64)

    def price(
        self,
        value_K: Int64Array,
        *,
        demand_K: Int64Array | None = None,
        max_patterns: int = 1,
        unit: int = 1,
    ) -> Pricing:
        """Return the most valuable pattern, and others with another last item.

        Pattern q is the best one among the heaviest item types up to some type, so that
        all come out of one run and each ends with another slot.

        Parameters
        ----------
        value_K
            Value of an item of each type, int64, any sign.
        demand_K
            Items available of each type; by default all.
        max_patterns
            How many patterns to read back at most; the most valuable ones.
        unit
            Round weights up to multiples of this: faster, and the patterns are feasible
            but not always the best.

        Raises
        ------
        InstanceError
            When values are too large for exact arithmetic.
        """
        begin_s = time.perf_counter()
        types = self.types
        demand_K = types.demand_K if demand_K is None else demand_K
        type_T, copies_T = _slots(types, value_K, demand_K)
        weight_T = -(-types.weight_K[type_T] // unit) * copies_T
        fits = weight_T <= types.capacity // unit
        type_T, copies_T, weight_T = type_T[fits], copies_T[fits], weight_T[fits]
        if type_T.size == 0:
            none = np.zeros((0, types.num_types), dtype=np.int64)
            return Pricing(best=0, value_Q=none.sum(axis=1), pattern_QK=none)
        slots = _Slots(
            weight_T=weight_T,
            samples_T=types.limited_samples_K[type_T] * copies_T,
            value_T=value_K[type_T] * copies_T,
            capacity=types.capacity // unit,
            sample_limit=types.sample_limit,
            dtype=_value_type(types, value_K),
        )
        found = slots.branch() if max_patterns == 1 else None
        if found is None and _stride(slots) > _LONGEST_STRIDE:
            rough = self.price(
                value_K, demand_K=demand_K, max_patterns=max_patterns, unit=2 * unit
            )
            return replace(rough, best=self._best_value(slots)) if unit == 1 else rough
        best_Q, chosen_QT = found or self._run(slots, max_patterns)
        q, t = np.nonzero(chosen_QT)
        pattern_QK = np.zeros((best_Q.size, types.num_types), dtype=np.int64)
        np.add.at(pattern_QK, (q, type_T[t]), copies_T[t])
        self.seconds_s += time.perf_counter() - begin_s
        self.num_runs += 1
        return Pricing(
            best=int(best_Q.max(initial=0)), value_Q=best_Q, pattern_QK=pattern_QK
        )

    def _run(self, slots: "_Slots", max_patterns: int) -> tuple[Int64Array, Any]:
        """Run the dynamic programme; return values [Q] and chosen slots [Q, T]."""
        from rpopt.exact import kernels

        weight_T, samples_T = slots.weight_T, slots.samples_T
        value_T = slots.value_T.astype(slots.dtype)
        stride = _stride(slots)
        kept_BSW = self._tables(-(-weight_T.size // stride), slots.shape, slots.dtype)
        best_T = self._fill(slots, stride, kept_BSW)
        last_Q = np.flatnonzero(np.diff(best_T, prepend=0) > 0)[-max_patterns:]
        chosen_QT = np.zeros((last_Q.size, weight_T.size), dtype=np.int8)
        kernels.trace(weight_T, samples_T, value_T, stride, kept_BSW, last_Q, chosen_QT)
        return best_T[last_Q].astype(np.int64), chosen_QT

    def _fill(self, slots: "_Slots", stride: int, kept_BSW: Any) -> Any:
        """Offer all slots; keep tables; return the best value after each slot."""
        from rpopt.exact import kernels

        value_T = slots.value_T.astype(slots.dtype)
        table_SW = np.zeros(slots.shape, dtype=slots.dtype)
        best_T = np.empty_like(value_T)
        step = max(1, _WORK_PER_CALL // table_SW.size)
        for begin in range(0, value_T.size, step):
            require_time(self.deadline_s)
            kernels.fill(
                slots.weight_T,
                slots.samples_T,
                value_T,
                begin,
                min(begin + step, value_T.size),
                stride,
                kept_BSW,
                table_SW,
                best_T,
            )
        return best_T

    def _best_value(self, slots: "_Slots") -> int:
        """Return the best value without keeping what its pattern is read from."""
        kept_BSW = np.empty((1, *slots.shape), dtype=slots.dtype)
        return int(self._fill(slots, slots.value_T.size, kept_BSW)[-1])

    def _tables(self, num: int, shape: tuple[int, int], dtype: Any) -> Any:
        size = num * shape[0] * shape[1]
        if self._memory.nbytes < size * np.dtype(dtype).itemsize:
            self._memory = np.empty(
                -(-size * np.dtype(dtype).itemsize // 8), dtype=np.int64
            )
        return self._memory.view(dtype)[:size].reshape(num, *shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Slots:
    """A 0-1 knapsack; the heaviest item types come first."""

    weight_T: Int64Array
    samples_T: Int64Array
    value_T: Int64Array
    capacity: int
    sample_limit: int
    dtype: Any  # holds every sum of values

    @property
    def shape(self) -> tuple[int, int]:
        """Entries of a table: numbers of samples, numbers of tokens."""
        return self.sample_limit + 1, self.capacity + 1

    def branch(self) -> tuple[Int64Array, Any] | None:
        """Search for the best pattern if few slots fit together; None if that fails."""
        most = self.capacity // int(self.weight_T.min())
        too_large = int(self.value_T.max()) > 2**52 // (self.capacity + 1)
        if self.weight_T.size > _FEW_SLOTS or most > _FEW_ITEMS or too_large:
            return None
        from rpopt.exact import kernels

        order = np.argsort(-self.value_T / self.weight_T, kind="stable")
        chosen_T = np.zeros(self.weight_T.size, dtype=np.int8)
        best = kernels.branch(
            self.weight_T[order],
            self.samples_T[order],
            self.value_T[order],
            self.capacity,
            self.sample_limit,
            _MOST_STEPS,
            chosen_T,
        )
        if best < 0:
            return None
        chosen_QT = np.zeros((1, self.weight_T.size), dtype=np.int8)
        chosen_QT[0, order] = chosen_T
        return np.array([best], dtype=np.int64), chosen_QT


def _slots(
    types: ItemTypes, value_K: Int64Array, demand_K: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return type and copies of each slot: copies are bundled by powers of two."""
    useful_K = np.minimum(demand_K, types.most_per_cell_K) * (value_K > 0)
    kinds, copies = [], []
    bundle = 1
    left_K = useful_K.copy()
    while left_K.any():
        taken_K = np.minimum(left_K, bundle)
        some = np.flatnonzero(taken_K)
        kinds.append(some)
        copies.append(taken_K[some])
        left_K -= taken_K
        bundle *= 2
    if not kinds:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    kind_T, copies_T = np.concatenate(kinds), np.concatenate(copies)
    order = np.argsort(kind_T, kind="stable")
    return kind_T[order], copies_T[order]


def _value_type(types: ItemTypes, value_K: Int64Array) -> Any:
    """Return the smallest integer type that no sum of the programme can leave.

    A pattern weighs at most the capacity, so its value is at most the capacity times
    the best value per token; a bundle is itself a pattern.
    """
    positive = value_K > 0
    ratio = (value_K[positive] / types.weight_K[positive]).max()
    largest = float(ratio) * types.capacity * 1.0001 + 1
    if largest >= MAX_VALUE:
        raise InstanceError(
            f"a pattern may be worth about {largest:.3g}; scale values to less than"
            " 2^62 for exact arithmetic"
        )
    return np.int32 if largest < 2**31 - 1 else np.int64


def _stride(slots: _Slots) -> int:
    """Return how many slots must share one kept table, so that all fit into memory."""
    table_bytes = slots.shape[0] * slots.shape[1] * np.dtype(slots.dtype).itemsize
    fitting = max(1, MEMORY_LIMIT_BYTES // table_bytes)
    return max(_STRIDE, -(-slots.weight_T.size // fitting))
