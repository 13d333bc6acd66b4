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
that they leave to the others, cannot keep below that cost, or not below the caps.

With several attention classes the peaks of a group are no single number; its cells are
then enumerated together. Everything is in integers and in a fixed order.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, S shards, H ranks
of a shard, Z sets of items: bit i of the index stands for item i.
"""

import math
from functools import cache

import numpy as np

from rpopt.certificate import Bound
from rpopt.errors import CertificateError
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import MAX_TOTAL_TICKS, LayoutInstance
from rpopt.plans import Layout
from rpopt.records import BoolArray, Int64Array, positive_int

NAME = "enumeration"
MOST_ITEMS = 20
"""A table has an entry per set, so 2^20 of them; a dozen tables are kept."""
MOST_STEPS = 5 * 10**8
"""A few seconds; a search that takes more is not begun, nor repeated by `recheck`."""
STEPS_PER_S = 5 * 10**7
"""What a slow, busy core does."""
_STEPS_PER_SET = 64  # what it costs to fill the tables, in steps

_NEVER = MAX_TOTAL_TICKS  # the sum of two fits 64 bits
_CELLS, _GROUPS, _BLOCKS = range(3)  # levels: what is put together


def enumeration(
    instance: LayoutInstance, best: Layout, *, most_steps: int = MOST_STEPS
) -> tuple[Layout, Bound] | None:
    """Return a layout of least J and the bound that proves it; None if it takes long.

    Parameters
    ----------
    instance
        The layout instance.
    best
        A feasible layout; the cheaper it is, the fewer steps are needed.
    most_steps
        A search that takes more is not begun; see `MOST_STEPS`.
    """
    fewest_steps = _STEPS_PER_SET << instance.num_items
    if instance.num_items > MOST_ITEMS or fewest_steps > most_steps:
        return None
    search = _Search(instance, evaluate(instance, best).j_ticks)
    if search.steps > most_steps:
        return None
    best = search.layout() or best
    ticks = evaluate(instance, best).j_ticks
    evidence = {"steps": _Search(instance, ticks).steps}
    return best, Bound(name=NAME, kind="arithmetic", value=ticks, evidence=evidence)


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
    search = _Search(instance, bound.value)
    if search.steps != claimed:
        raise CertificateError(
            f"the enumeration below {bound.value} ticks takes {search.steps} steps; the"
            f" evidence says {claimed}"
        )
    layout = search.layout()
    return bound.value if layout is None else evaluate(instance, layout).j_ticks


class _Search:
    """The search for a layout with fewer ticks than `below`, the offset included."""

    def __init__(self, instance: LayoutInstance, below: int) -> None:
        self._instance = instance
        self._limit = min(max(0, below - instance.offset_ticks), MAX_TOTAL_TICKS)
        by_row = instance.coupling == "row"
        blocks = (instance.num_rows, instance.num_shards)[:: -1 if by_row else 1]
        self._parts = (instance.shard_size, *blocks)
        self._adds = (False, not by_row, by_row)
        costly = np.flatnonzero(instance.attention_ticks_IC.any(axis=0)).tolist()
        attention_CI = instance.attention_ticks_IC.T[costly or [0]]
        self._attention_CZ = np.stack([_sums(v) for v in attention_CI])
        self._expert_Z = _expert_ticks(instance)
        self._room = _Room(instance)
        self._table = cache(self._computed)
        self._sets = cache(self._listed)

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
                size_Z = np.bitwise_count(self._sets(parts * cells))
                for size, count in enumerate(np.bincount(size_Z).tolist()):
                    total += count * choices ** max(0, size - 1)
        return total

    def layout(self) -> Layout | None:
        """Return the cheapest layout below the limit, None when there is none."""
        everything = self._expert_Z.size - 1
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
        return level == _CELLS and self._parts[level] > 1 < len(self._attention_CZ)

    def _computed(self, level: int, parts: int) -> Int64Array:
        """Return the least cost of each set in so many parts, [Z]; `_NEVER` if none."""
        from rpopt.layout import kernels  # numba loads slowly

        if level == _BLOCKS and parts == 1:
            return self._table(_GROUPS, self._parts[_GROUPS])
        sets = self._sets(parts * math.prod(self._parts[:level]))
        cost_Z = np.full(self._expert_Z.size, _NEVER)
        if parts == 1 and level == _CELLS:
            cost_Z[sets] = self._attention_CZ[:, sets].sum(axis=0)
        elif parts == 1:
            attention_Z = self._table(_CELLS, self._parts[_CELLS])
            cost_Z[sets] = attention_Z[sets] + self._expert_Z[sets]
        elif self._together(level):
            fits_Z = self._table(_CELLS, 1) < _NEVER
            kernels.spread_all(
                self._attention_CZ, fits_Z, sets, parts, self._limit, cost_Z
            )
        else:
            halves = self._table(level, parts // 2), self._table(level, -(-parts // 2))
            kernels.combine(*halves, sets, self._adds[level], self._limit, cost_Z)
        cost_Z[cost_Z >= self._limit] = _NEVER
        return cost_Z

    def _split(self, level: int, items: int, parts: int = 0) -> list[int]:
        """Return the parts of a set that its cost in `_table` comes from."""
        from rpopt.layout import kernels

        parts = parts or self._parts[level]
        if parts == 1:
            return [items]
        if self._together(level):
            fits_Z = self._table(_CELLS, 1) < _NEVER
            sets, unused_Z = np.array([items]), np.empty_like(self._expert_Z)
            cell_H: Int64Array = kernels.spread_all(
                self._attention_CZ, fits_Z, sets, parts, self._limit, unused_Z
            )
            return cell_H.tolist()
        halves = self._table(level, parts // 2), self._table(level, -(-parts // 2))
        first = kernels.split(*halves, items, self._adds[level], self._limit)[1]
        return [
            *self._split(level, first, parts // 2),
            *self._split(level, items ^ first, -(-parts // 2)),
        ]

    def _listed(self, cells: int) -> Int64Array:
        """Return the sets that so many cells of a layout below the limit may hold.

        The cells are part of one group, or whole groups of one block, or whole blocks.
        """
        instance, most = self._instance, self._limit - 1
        shards, h = instance.num_shards, instance.shard_size
        if instance.coupling == "step":
            whole = cells // (h * instance.num_rows)
            touched, others = max(1, whole), shards - whole
        else:
            touched, others = min(shards, max(1, cells // h)), shards
        whole_Z = self._volume(h)
        rest_Z = whole_Z[::-1]  # the complement of a set stands at the other end
        rest_fits_Z = self._room.for_cells(instance.num_cells - cells)[::-1]
        wanted_Z = self._room.for_cells(cells) & rest_fits_Z
        wanted_Z &= self._volume(min(cells, h)) <= touched * most
        wanted_Z &= rest_Z <= others * most
        if cells >= h:
            wanted_Z &= whole_Z + rest_Z <= shards * most
        return np.flatnonzero(wanted_Z)

    def _volume(self, cells: int) -> Int64Array:
        """Return what each set costs at least, spread evenly over cells of a group."""
        volume_Z: Int64Array = -(-self._attention_CZ // cells)
        return volume_Z.sum(axis=0) + self._expert_Z


class _Room:
    """Tokens, samples and number of items of every set, against the limits of cells."""

    def __init__(self, instance: LayoutInstance) -> None:
        self._instance = instance
        self._tokens_Z = _sums(instance.weight_I)
        self._samples_Z = _sums(instance.num_samples_I)
        self._size_Z = np.bitwise_count(np.arange(self._tokens_Z.size))

    def for_cells(self, cells: int) -> BoolArray:
        """Return which sets may fill so many cells, by volume, [Z]."""
        instance = self._instance
        fits_Z: BoolArray = self._tokens_Z <= cells * instance.token_cap
        if instance.max_samples_per_cell is not None:
            fits_Z &= self._samples_Z <= cells * instance.max_samples_per_cell
        return fits_Z & (self._size_Z >= cells)


def _sums(values_I: Int64Array) -> Int64Array:
    """Return the sum of every set, [Z]."""
    sum_Z = np.zeros(1, dtype=np.int64)
    for value in values_I:
        sum_Z = np.concatenate([sum_Z, sum_Z + value])
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
