"""The best layout of a few items, exactly: every set of items, its least cost.

What a cell, a group or a block costs depends on the set of items in it and on nothing
else. (Blocks: what J takes a maximum or a sum over first, shards under coupling "step"
and rows under coupling "row".) So the least costs of all sets follow from each other:

    cells to a group    their largest attention, then plus the experts of the group
    groups to a block   step: their sum (rows of a shard); row: the largest of a row
    blocks to a layout  step: the largest (shards); row: their sum (rows)

k parts are split into k // 2 and the others, and parts can be exchanged, so the first
item is in the first half: a set of n items takes 2^(n - 1) steps. Only layouts cheaper
than one that is known matter. So most sets are left out: by volume they, or the items
that they leave to the others, cannot keep below that cost, or not below the caps. A
lower limit leaves out more, so limits between a bound and the known cost come first: a
search that finds nothing has still raised the bound.

With several attention classes the peaks of a group are no single number; its cells are
then enumerated together. Everything is in integers and in a fixed order.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, S shards, H ranks
of a shard, Z sets of items: bit i of the index stands for item i.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import MAX_TOTAL_TICKS, LayoutInstance
from rpopt.plans import Layout
from rpopt.records import BoolArray, Int64Array, positive_int
from rpopt.stop import OutOfTimeError, require_time

NAME = "enumeration"
MOST_ITEMS = 24
"""A table has an entry per set, so 2^24 of them (128 MiB); at most nine are kept."""
MOST_STEPS = 6 * 10**9
"""About twenty seconds; what takes more is not begun, nor repeated by `recheck`."""
STEPS_PER_S = 30 * 10**7
"""About what an idle core does; where that is too much, the clock ends a search."""
_STEPS_PER_SET = 32  # what it costs to fill the tables of one search, in steps
_STEPS_PER_LOAD = 1  # and to sum up one load of each set, once
_STEPS_PER_PORTION, _SETS_PER_PORTION = 10**8, 2**16  # between looks at the clock
_EIGHTHS = (1, 2, 4, 6, 8)  # limits: the bound plus these eighths of the gap

_NEVER = MAX_TOTAL_TICKS  # the sum of two fits 64 bits
_CELLS, _GROUPS, _BLOCKS = range(3)  # levels: what is put together


def enumeration(
    instance: LayoutInstance,
    best: Layout,
    *,
    lower: int = 0,
    most_steps: int = 2 * MOST_STEPS,
    deadline_s: float = math.inf,
    on_bound: Callable[[int], None] = lambda ticks: None,
) -> tuple[Layout, Bound] | None:
    """Return the best layout found and the bound proved; None if that takes too long.

    The layout is one of least J where the bound says so: where they meet.

    Parameters
    ----------
    instance
        The layout instance.
    best
        A feasible layout; the cheaper it is, the fewer steps are needed.
    lower
        A bound on J in ticks; the higher it is, the fewer steps are needed.
    most_steps
        Of all searches together, tables included; what would take more is not begun.
    deadline_s
        On the clock of `time.monotonic`: the steps may take longer than was thought.
    on_bound
        Called with every better bound, in ticks.
    """
    if instance.num_items > MOST_ITEMS:
        return None
    found: list[tuple[Layout, Bound]] = []
    with contextlib.suppress(OutOfTimeError):
        for layout, bound in _rising(instance, best, lower, most_steps, deadline_s):
            found.append((layout, bound))
            on_bound(bound.value)
    return found[-1] if found else None


def _rising(
    instance: LayoutInstance,
    best: Layout,
    lower: int,
    most_steps: int,
    deadline_s: float,
) -> Iterator[tuple[Layout, Bound]]:
    """Search below limits that rise from a bound to the known cost."""
    fill_steps = _STEPS_PER_SET << instance.num_items
    load_steps = _STEPS_PER_LOAD * instance.load_ILP[0].size << instance.num_items
    left = most_steps - load_steps
    if left < fill_steps:
        return
    tables, upper = _Tables(instance, deadline_s), evaluate(instance, best).j_ticks
    for part in _EIGHTHS:
        limit = upper - (upper - lower) * (8 - part) // 8
        left -= fill_steps
        if left < 0:
            break
        search = _Search(tables, limit)
        left -= search.steps
        if search.steps > MOST_STEPS or left < 0:
            break
        layout = search.layout()
        if layout is not None:
            best, limit = layout, evaluate(instance, layout).j_ticks
            search = _Search(tables, limit)
        evidence = {"steps": search.steps}
        yield best, Bound(name=NAME, kind="arithmetic", value=limit, evidence=evidence)
        if layout is not None:
            break


def recheck(instance: LayoutInstance, bound: Bound) -> int:
    """Return the ticks of J that an enumeration proves: do it again.

    That is the value of the bound where no layout is cheaper, else the optimum.

    Raises
    ------
    CertificateError
        When that takes too long, or another number of steps than the evidence says.
    """
    if set(bound.evidence) != {"steps"}:
        raise CertificateError(f"it has the fields {sorted(bound.evidence)}, not steps")
    claimed = positive_int(bound.evidence["steps"], name="steps", minimum=0)
    if instance.num_items > MOST_ITEMS or claimed > MOST_STEPS:
        raise CertificateError(
            f"an enumeration of {instance.num_items} items in {claimed} steps is not"
            f" repeated; at most {MOST_ITEMS} items and {MOST_STEPS} steps are"
        )
    search = _Search(_Tables(instance), bound.value)
    if search.steps != claimed:
        raise CertificateError(
            f"the enumeration below {bound.value} ticks takes {search.steps} steps; the"
            f" evidence says {claimed}"
        )
    layout = search.layout()
    return bound.value if layout is None else evaluate(instance, layout).j_ticks


class _Tables:
    """What every set of items weighs and costs, whatever the limit."""

    def __init__(self, instance: LayoutInstance, deadline_s: float = math.inf) -> None:
        self.instance, self.deadline_s = instance, deadline_s
        require_time(deadline_s)
        costly = np.flatnonzero(instance.attention_ticks_IC.any(axis=0)).tolist()
        attention_CI = instance.attention_ticks_IC.T[costly or [0]]
        self.attention_CZ = np.stack([_sums(v) for v in attention_CI])
        self.expert_Z = _expert_ticks(instance)
        self._tokens_Z = _sums(instance.weight_I)
        self._samples_Z: Int64Array | None = None
        if instance.max_samples_per_cell is not None:
            self._samples_Z = _sums(instance.num_samples_I)
        self.size_Z = _sums(np.ones(instance.num_items, dtype=np.uint8))

    def volume(self, cells: int) -> Int64Array:
        """Return what each set costs at least, spread evenly over cells of a group."""
        volume_Z = self.expert_Z.copy()
        for attention_Z in self.attention_CZ:
            volume_Z -= -attention_Z // cells
        return volume_Z

    def fit(self, cells: int) -> BoolArray:
        """Return which sets may fill so many cells, by volume, [Z]."""
        limit = self.instance.max_samples_per_cell
        fit_Z: BoolArray = self._tokens_Z <= cells * self.instance.token_cap
        if self._samples_Z is not None and limit is not None:
            fit_Z &= self._samples_Z <= cells * limit
        fit_Z &= self.size_Z >= cells
        return fit_Z


class _Search:
    """The search for a layout with fewer ticks than `below`, the offset included."""

    def __init__(self, tables: _Tables, below: int) -> None:
        self._tables, self._instance = tables, tables.instance
        instance = tables.instance
        self._limit = min(max(0, below - instance.offset_ticks), MAX_TOTAL_TICKS)
        by_row = instance.coupling == "row"
        blocks = (instance.num_rows, instance.num_shards)[:: -1 if by_row else 1]
        self._parts = (instance.shard_size, *blocks)
        self._adds = (False, not by_row, by_row)
        self._costs: dict[tuple[int, int], Int64Array] = {}
        self._listed: dict[int, npt.NDArray[np.int32]] = {}

    @property
    def steps(self) -> int:
        """Number of splits to be tried, known before any is."""
        total = 0
        for level in (_CELLS, _GROUPS, _BLOCKS):
            together = self._together(level)
            top, cells = self._parts[level], math.prod(self._parts[:level])
            for parts in {top} if together else _halves(top):
                # Each item but the first goes to one of two halves, or to any part.
                choices = parts if together else 2
                size_Z = self._tables.size_Z[self._sets(parts * cells)]
                for size, count in enumerate(np.bincount(size_Z).tolist()):
                    total += count * choices ** max(0, size - 1)
        return total

    def layout(self) -> Layout | None:
        """Return the cheapest layout below the limit, None when there is none."""
        everything = self._tables.expert_Z.size - 1
        if self._table(_BLOCKS, self._parts[_BLOCKS])[everything] >= self._limit:
            return None
        instance = self._instance
        rank_SH = np.argsort(instance.shard_of_rank_D, kind="stable").reshape(
            instance.num_shards, -1
        )
        row_I = np.empty(instance.num_items, dtype=np.int64)
        rank_I = np.empty_like(row_I)
        for b, block in enumerate(self._split(_BLOCKS, everything)):
            for j, group in enumerate(self._split(_GROUPS, block)):
                row, shard = (b, j) if instance.coupling == "row" else (j, b)
                for h, cell in enumerate(self._split(_CELLS, group)):
                    inside_I = (cell >> np.arange(instance.num_items)) & 1 == 1
                    row_I[inside_I], rank_I[inside_I] = row, rank_SH[shard, h]
        return Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)

    def _together(self, level: int) -> bool:
        """Whether the parts are enumerated together, not in halves."""
        num_classes = len(self._tables.attention_CZ)
        return level == _CELLS and self._parts[level] > 1 < num_classes

    def _table(self, level: int, parts: int) -> Int64Array:
        """Return the least cost of each set in so many parts, [Z]; `_NEVER` if none."""
        if (level, parts) not in self._costs:
            self._costs[level, parts] = self._computed(level, parts)
        return self._costs[level, parts]

    def _computed(self, level: int, parts: int) -> Int64Array:
        from rpopt.layout import kernels  # numba loads slowly

        if level == _BLOCKS and parts == 1:
            return self._table(_GROUPS, self._parts[_GROUPS])
        sets = self._sets(parts * math.prod(self._parts[:level]))
        cost_Z = np.full(self._tables.expert_Z.size, _NEVER)
        if parts == 1 and level == _CELLS:
            cost_Z[sets] = self._tables.attention_CZ[:, sets].sum(axis=0)
        elif parts == 1:
            attention_Z = self._table(_CELLS, self._parts[_CELLS])
            cost_Z[sets] = attention_Z[sets] + self._tables.expert_Z[sets]
        elif self._together(level):
            fits_Z = self._table(_CELLS, 1) < _NEVER
            for some in self._portions(sets, parts):
                kernels.spread_all(
                    self._tables.attention_CZ, fits_Z, some, parts, self._limit, cost_Z
                )
        else:
            halves = self._table(level, parts // 2), self._table(level, -(-parts // 2))
            for some in self._portions(sets, 2):
                kernels.combine(*halves, some, self._adds[level], self._limit, cost_Z)
        cost_Z[cost_Z >= self._limit] = _NEVER
        return cost_Z

    def _portions(
        self, sets: npt.NDArray[np.int32], choices: int
    ) -> Iterator[npt.NDArray[np.int32]]:
        """Cut a list of sets into portions of similar work; look at the clock before.

        Of a set, each item but the first has so many choices.
        """
        for first in range(0, sets.size, _SETS_PER_PORTION):
            several = sets[first : first + _SETS_PER_PORTION]
            steps_Z = float(choices) ** (self._tables.size_Z[several] - 1.0)
            portion_Z = steps_Z.cumsum() // _STEPS_PER_PORTION
            for some in np.split(several, np.flatnonzero(np.diff(portion_Z)) + 1):
                require_time(self._tables.deadline_s)
                yield some

    def _split(self, level: int, items: int, parts: int = 0) -> list[int]:
        """Return the parts of a set that its cost in `_table` comes from."""
        from rpopt.layout import kernels

        parts = parts or self._parts[level]
        if parts == 1:
            return [items]
        if self._together(level):
            fits_Z = self._table(_CELLS, 1) < _NEVER
            sets, unused_Z = np.array([items]), np.empty_like(self._tables.expert_Z)
            cell_H: Int64Array = kernels.spread_all(
                self._tables.attention_CZ, fits_Z, sets, parts, self._limit, unused_Z
            )
            return cell_H.tolist()
        halves = self._table(level, parts // 2), self._table(level, -(-parts // 2))
        first = kernels.split(*halves, items, self._adds[level], self._limit)[1]
        return [
            *self._split(level, first, parts // 2),
            *self._split(level, items ^ first, -(-parts // 2)),
        ]

    def _sets(self, cells: int) -> npt.NDArray[np.int32]:
        """Return the sets that so many cells of a layout below the limit may hold.

        The cells are part of one group, or whole groups of one block, or whole blocks.
        """
        if cells not in self._listed:
            require_time(self._tables.deadline_s)
            wanted_Z = self._wanted(cells)
            self._listed[cells] = np.flatnonzero(wanted_Z).astype(np.int32)
        return self._listed[cells]

    def _wanted(self, cells: int) -> BoolArray:
        instance, tables, most = self._instance, self._tables, self._limit - 1
        shards, h = instance.num_shards, instance.shard_size
        if instance.coupling == "step":
            whole = cells // (h * instance.num_rows)
            touched, others = max(1, whole), shards - whole
        else:
            touched, others = min(shards, max(1, cells // h)), shards
        wanted_Z = tables.fit(cells)
        wanted_Z &= tables.fit(instance.num_cells - cells)[::-1]
        wanted_Z &= tables.volume(min(cells, h)) <= touched * most
        whole_Z = tables.volume(h)
        rest_Z = whole_Z[::-1]  # the complement of a set stands at the other end
        wanted_Z &= rest_Z <= others * most
        if cells >= h:
            wanted_Z &= whole_Z + rest_Z <= shards * most
        return wanted_Z


def _sums(values_I: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the sum of every set, [Z]."""
    sum_Z = np.zeros(2**values_I.size, dtype=values_I.dtype)
    for i, value in enumerate(values_I):
        sum_Z[2**i : 2 ** (i + 1)] = sum_Z[: 2**i] + value
    return sum_Z


def _expert_ticks(instance: LayoutInstance) -> Int64Array:
    """Return what the expert peaks of every set cost, if it is a group, [Z]."""
    from rpopt.layout import kernels  # numba loads slowly

    expert_Z = np.zeros(2**instance.num_items, dtype=np.int64)
    costly_L = instance.load_ILP.any(axis=(0, 2)) & (instance.layer_weight_ticks_L > 0)
    if costly_L.any():
        load_ILP = instance.load_ILP[:, costly_L].astype(np.int64)
        weight_L = instance.layer_weight_ticks_L[costly_L]
        kernels.expert_ticks(load_ILP, weight_L, np.zeros_like(load_ILP[0]), expert_Z)
    return expert_Z


def _halves(parts: int) -> set[int]:
    """Return the numbers of parts, above 1, that splitting into halves meets."""
    if parts == 1:
        return set()
    return {parts} | _halves(parts // 2) | _halves(-(-parts // 2))
