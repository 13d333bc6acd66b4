"""Subset sums with big-integer bitsets: fullest cells, and packings made of them.

Bit t of a bitset says that some subset weighs exactly t; one more item is a shift and
an "or". Weights are divided by their greatest common divisor first.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from rpopt.packing import bounds
from rpopt.packing.cells import Cells, from_cells, to_cells
from rpopt.packing.instance import PackingInstance, PackingSolution
from rpopt.stop import OutOfTimeError, require_time

MAX_BITS = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFiller:
    """Chooses the items that fill a cell best.

    Parameters
    ----------
    weight
        Weight of each item.
    capacity
        Weight that a cell holds.
    samples
        Samples of each item.
    limit
        Samples that a cell holds; None for no limit.
    price
        Weight that one sample counts as where samples are limited: dear if the items
        need more cells for their samples than for their weight.
    """

    weight: list[int]
    capacity: int
    samples: list[int]
    limit: int | None
    price: int

    @classmethod
    def of(cls, instance: PackingInstance) -> "CellFiller":
        """Return the filler of an instance, in units of the weights' common divisor.

        Above `MAX_BITS` units, larger ones are used and weights are rounded up: what
        fits then fits exactly too.
        """
        weight, samples = instance.weight_I.tolist(), instance.samples_I.tolist()
        unit = max(math.gcd(*weight), -(-instance.capacity // MAX_BITS))
        capacity, limit = instance.capacity // unit, instance.max_samples_per_cell
        price = 0
        if limit is not None:
            price = sum(samples) * instance.capacity**2 // (sum(weight) * limit**2)
        return cls(
            weight=[min(-(-w // unit), capacity) for w in weight],
            capacity=capacity,
            samples=samples,
            limit=limit,
            price=price // unit,
        )

    def worth(self, items: Sequence[int]) -> int:
        """Return what some items are worth in a cell: their weight and samples."""
        return sum(self.weight[i] + self.price * self.samples[i] for i in items)

    def places(self, items: Sequence[int], inside: Sequence[int] = ()) -> int | None:
        """Return the samples that fit beside those inside; None if all items' do."""
        if self.limit is None:
            return None
        left = self.limit - sum(self.samples[i] for i in inside)
        return left if sum(self.samples[i] for i in items) > left else None

    def split(
        self, items: Sequence[int], inside: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Part items into the set worth most that fits beside those inside, and a rest.

        Among equal sets, items that come late are left out where possible.
        """
        room = self.capacity - sum(self.weight[i] for i in inside)
        places = self.places(items, inside)
        sizes = [0 if places is None else self.samples[i] for i in items]
        weights = [self.weight[i] for i in items]
        chosen = best_subset(weights, sizes, room, places or 0, self.price)
        rest = set(range(len(items))).difference(chosen)
        return [items[k] for k in chosen], [items[k] for k in sorted(rest)]


def best_subset(
    weights: Sequence[int], sizes: Sequence[int], room: int, places: int, price: int = 0
) -> list[int]:
    """Return the positions of a subset of most weight + price x size that fits.

    The search ends early once room and places are filled exactly. Bitset s of `reach`
    holds the weights that subsets of size s reach.
    """
    mask = (1 << (room + 1)) - 1
    reach = [1] + [0] * places
    steps = [reach]
    for weight, size in zip(weights, sizes, strict=True):
        reach = reach.copy()
        for used in range(places, size - 1, -1):
            reach[used] |= reach[used - size] << weight & mask
        steps.append(reach)
        if reach[places] >> room:
            break
    total, used = max(
        ((bits.bit_length() - 1, used) for used, bits in enumerate(reach) if bits),
        key=lambda state: state[0] + price * state[1],
    )
    chosen = []
    for k in range(len(steps) - 2, -1, -1):
        if not steps[k][used] >> total & 1:
            chosen.append(k)
            total, used = total - weights[k], used - sizes[k]
    return chosen[::-1]


def subset_sum_fill(
    instance: PackingInstance,
    *,
    max_candidates: int = 128,
    deadline_s: float = math.inf,
) -> PackingSolution:
    """Fill one cell after the other: the heaviest item left, then a best subset.

    Parameters
    ----------
    max_candidates
        Items that a subset is chosen from; if more fit, evenly spaced ones by weight.
    deadline_s
        When to give up with an `OutOfTimeError`, on the clock of `time.monotonic`.

    Notes
    -----
    The minimum bin slack heuristic MBS' of Fleszar and Hindi (2002), with the subset
    found by dynamic programming.
    """
    filler = CellFiller.of(instance)
    rest = _by_weight(filler, range(instance.num_items))
    cells: Cells = []
    while rest:
        require_time(deadline_s)
        first = rest.pop(0)
        room = filler.capacity - filler.weight[first]
        start = bisect_left(rest, -room, key=lambda i: -filler.weight[i])
        step = max(1, -(-(len(rest) - start) // max_candidates))
        chosen, _ = filler.split(rest[start::step], [first])
        cells.append([first, *chosen])
        taken = set(chosen)
        rest = [i for i in rest if i not in taken]
    return from_cells(cells, instance.num_items)


def empty_last_cells(
    instance: PackingInstance,
    solution: PackingSolution,
    *,
    goal: int = 1,
    max_work: int = 100_000,
    deadline_s: float = math.inf,
) -> PackingSolution:
    """Empty the lightest cells into the others, until `goal` cells are left.

    The lightest cell becomes a pool. For one pair of cells after the other, the items
    of pair and pool are moved and swapped so that the first cell is as full as can be,
    then the second; the change stands unless the pool grows. The t-th time around, each
    cell is paired with the t-th after it.

    Parameters
    ----------
    goal
        Number of cells at which to stop; a lower bound where that is larger.
    max_work
        Bitset operations to spend, in units of 4 KiB.
    deadline_s
        When to stop, on the clock of `time.monotonic`.
    """
    filler = CellFiller.of(instance)
    cells = to_cells(solution)
    goal = max(goal, bounds.l2(instance).value)
    while len(cells) > goal and max_work > 0:
        try:
            cells, max_work = _empty_lightest(filler, cells, max_work, deadline_s)
        except OutOfTimeError:
            break
    return from_cells(cells, instance.num_items)


def _empty_lightest(
    filler: CellFiller, cells: Cells, max_work: int, deadline_s: float
) -> tuple[Cells, int]:
    """Return the cells without the lightest, or all without success; and work left."""
    lightest = min(range(len(cells)), key=lambda k: filler.worth(cells[k]))
    others = cells[:lightest] + cells[lightest + 1 :]
    pool = cells[lightest]
    pages = 1 + filler.capacity // 2**15
    for turn in count():
        require_time(deadline_s)
        shift = 1 + turn // len(others) % max(1, len(others) - 1)
        pair = {j % len(others): None for j in (turn, turn + shift)}
        rest = _by_weight(filler, pool + [i for j in pair for i in others[j]])
        max_work -= len(pair) * len(rest) * (1 + (filler.places(rest) or 0)) * pages
        if max_work <= 0:
            return cells, 0
        filled = []
        for _ in pair:
            cell, rest = filler.split(rest)
            filled.append(cell)
        if filler.worth(rest) <= filler.worth(pool):
            pool = rest
            for j, cell in zip(pair, filled, strict=True):
                others[j] = cell
        if not pool:
            break
    return [cell for cell in others if cell], max_work


def _by_weight(filler: CellFiller, items: Sequence[int]) -> list[int]:
    return sorted(items, key=lambda i: (-filler.weight[i], i))
