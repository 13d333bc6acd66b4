"""Brute force over tiny instances, and random instances to run it on.

Written without the code under test: plain loops, or one array over all layouts.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance
from rpopt.placement.instance import PlacementInstance


def partitions(num_items: int) -> Iterator[list[int]]:
    """The block of each item, for every set partition."""
    if num_items == 0:
        yield []
        return
    for head in partitions(num_items - 1):
        for block in range(max(head, default=-1) + 2):
            yield [*head, block]


def fits(instance: PackingInstance, cell_I: list[int]) -> bool:
    limit = instance.max_samples_per_cell
    for cell in set(cell_I):
        inside = [i for i, c in enumerate(cell_I) if c == cell]
        if instance.weight_I[inside].sum() > instance.capacity:
            return False
        if limit is not None and instance.samples_I[inside].sum() > limit:
            return False
    return True


def fewest_cells(instance: PackingInstance) -> int:
    feasible = (p for p in partitions(instance.num_items) if fits(instance, p))
    return min(max(p) + 1 for p in feasible)


def can_fill(instance: PackingInstance, num_cells: int) -> bool:
    """Whether a packing into exactly so many nonempty cells exists."""
    return any(
        max(p) + 1 == num_cells and fits(instance, p)
        for p in partitions(instance.num_items)
    )


def rank_choices(num_experts: int, num_ranks: int) -> list[tuple[int, ...]]:
    """The EP rank of each expert, for every balanced placement."""
    per_rank = num_experts // num_ranks
    return [
        ranks
        for ranks in itertools.product(range(num_ranks), repeat=num_experts)
        if all(ranks.count(q) == per_rank for q in range(num_ranks))
    ]


def smallest_peak(instance: PlacementInstance, layer: int) -> int:
    load_E = instance.load_LE[layer].tolist()
    choices = rank_choices(len(load_E), instance.num_ep_ranks)
    return min(
        max(
            sum(load for load, r in zip(load_E, ranks, strict=True) if r == q)
            for q in range(instance.num_ep_ranks)
        )
        for ranks in choices
    )


def feasible_layouts(instance: LayoutInstance) -> np.ndarray:
    """The cell (row * D + rank) of each item in every feasible layout, [A, I]."""
    num_items, num_cells = instance.num_items, instance.num_cells
    grid = np.indices((num_cells,) * num_items).reshape(num_items, -1).T
    inside = grid[:, :, None] == np.arange(num_cells)  # [A, I, cell]
    keep = inside.any(axis=1).all(axis=1)
    keep &= (inside * instance.weight_I[:, None]).sum(1).max(1) <= instance.token_cap
    if instance.max_samples_per_cell is not None:
        samples = (inside * instance.num_samples_I[:, None]).sum(1).max(1)
        keep &= samples <= instance.max_samples_per_cell
    return grid[keep]


def layout_ticks(instance: LayoutInstance, cells_AI: np.ndarray) -> np.ndarray:
    """Ticks of J of many layouts, [A]."""
    num_rows, num_ranks = instance.num_rows, instance.num_ranks
    inside = (cells_AI[:, :, None] == np.arange(instance.num_cells)).astype(np.int64)
    attention = np.einsum("aic,ik->ack", inside, instance.attention_ticks_IC)
    load = np.einsum("aic,ilq->aclq", inside, instance.load_ILP.astype(np.int64))
    shard_D = instance.shard_of_rank_D
    cost = np.zeros((len(cells_AI), num_rows, instance.num_shards), dtype=np.int64)
    for row in range(num_rows):
        for shard in range(instance.num_shards):
            cells = row * num_ranks + np.flatnonzero(shard_D == shard)
            peaks = attention[:, cells].max(axis=1).sum(axis=1)
            group = load[:, cells].sum(axis=1)
            if group.size:
                peaks = peaks + group.max(axis=2) @ instance.layer_weight_ticks_L
            cost[:, row, shard] = peaks
    if instance.coupling == "row":
        return cost.max(axis=2).sum(axis=1) + instance.offset_ticks
    return cost.sum(axis=1).max(axis=1) + instance.offset_ticks


def smallest_j(instance: LayoutInstance) -> int | None:
    """Ticks of the best layout; None when none is feasible."""
    layouts = feasible_layouts(instance)
    return int(layout_ticks(instance, layouts).min()) if len(layouts) else None


# -------------------------------------------------------------------- random instances

SHAPES = [(1, 1, 2), (1, 2, 1), (2, 1, 2), (2, 2, 1), (1, 1, 3), (3, 1, 1), (1, 2, 2)]
"""(rows, shards, ranks per shard): one row, one shard, one rank per shard are there."""


def random_layout(rng: np.random.Generator, **fields: Any) -> LayoutInstance:
    """A tiny layout instance: skewed items, several classes, limits that bind."""
    rows, shards, per_shard = SHAPES[rng.integers(len(SHAPES))]
    cells = rows * shards * per_shard
    num_items = int(rng.integers(cells, 8 if cells < 4 else 7))
    layers, ranks = int(rng.integers(0, 3)), int(rng.integers(1, 4))
    classes = int(rng.integers(1, 4))
    weight_I = rng.integers(1, 12, num_items)
    longest, total = int(weight_I.max()), int(weight_I.sum())
    cap = max(longest, -(-total // cells) + int(rng.integers(0, 4)))
    skew = rng.integers(1, 4)
    attention_IC = weight_I[:, None] ** rng.integers(1, 3, classes) * skew
    attention_IC[:, rng.random(classes) < 0.15] = 0
    samples_I = rng.integers(1, 3, num_items)
    limit = int(rng.integers(2, 6)) if rng.random() < 0.3 else None
    values: dict[str, Any] = {
        "weight_I": weight_I,
        "num_samples_I": samples_I,
        "attention_ticks_IC": attention_IC,
        "load_ILP": rng.integers(0, 9, (num_items, layers, ranks)).astype(np.int32),
        "layer_weight_ticks_L": rng.integers(0, 4, layers),
        "offset_ticks": int(rng.integers(0, 3)),
        "unit_ticks": 64,
        "num_rows": rows,
        "token_cap": cap,
        "shard_of_rank_D": rng.permutation(np.repeat(np.arange(shards), per_shard)),
        "max_samples_per_cell": limit,
        "coupling": ("step", "row")[rng.integers(2)],
    }
    return LayoutInstance(**{**values, **fields})


def random_packing(rng: np.random.Generator) -> PackingInstance:
    num_items = int(rng.integers(1, 8))
    weight_I = rng.integers(1, 11, num_items)
    samples_I = rng.integers(1, 3, num_items)
    return PackingInstance(
        weight_I=weight_I,
        capacity=int(weight_I.max() + rng.integers(0, 8)),
        num_samples_I=samples_I,
        max_samples_per_cell=int(rng.integers(2, 5)) if rng.random() < 0.4 else None,
        num_ranks=int(rng.integers(1, 3)),
        row_multiple=int(rng.integers(1, 3)),
    )


def random_placement(rng: np.random.Generator) -> PlacementInstance:
    ranks, per_rank = [(1, 3), (2, 2), (2, 3), (3, 2), (4, 1)][rng.integers(5)]
    load_LE = (10 ** rng.uniform(0, 2, (2, ranks * per_rank))).astype(np.int64)
    return PlacementInstance(load_LE=load_LE, num_ep_ranks=ranks)
