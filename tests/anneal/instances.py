"""Small random layout instances with a feasible layout of each."""

import numpy as np

from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.topology import Coupling

COUPLINGS: tuple[Coupling, ...] = ("step", "row")


def random_instance(
    seed: int,
    *,
    coupling: Coupling = "step",
    num_items: int | None = None,
    num_rows: int | None = None,
    num_shards: int | None = None,
    shard_size: int | None = None,
    num_layers: int | None = None,
    num_ranks: int | None = None,
    slack: int | None = None,
) -> tuple[LayoutInstance, Layout]:
    """Draw an instance around a random layout, which makes it feasible and tight.

    Sizes left out are drawn: several attention classes, no experts, one EP rank,
    limits of samples, and items that weigh exactly the cap are all among them.
    """
    rng = np.random.default_rng(seed)

    def pick(value: int | None, *choices: int) -> int:
        return int(rng.choice(choices)) if value is None else value

    rows, shards = pick(num_rows, 1, 2, 3), pick(num_shards, 1, 2, 3)
    size, layers = pick(shard_size, 1, 2, 3), pick(num_layers, 0, 1, 3, 9)
    ranks, cells = pick(num_ranks, 1, 2, 3, 4, 8, 19), rows * shards * size
    items = (
        cells + pick(None, 0, 1, cells, 3 * cells) if num_items is None else num_items
    )
    weight_I = rng.integers(1, 50, items)
    cell_I = np.concatenate([np.arange(cells), rng.integers(0, cells, items - cells)])
    tokens = np.bincount(cell_I, weights=weight_I, minlength=cells).astype(np.int64)
    cap = int(tokens.max()) + pick(slack, 0, 5, 60)
    if rng.random() < 0.3 and np.bincount(cell_I)[0] == 1:
        weight_I[0] = cap
    samples_I = rng.integers(1, 4, items)
    held = np.bincount(cell_I, weights=samples_I).astype(np.int64)
    limit = int(held.max()) + int(rng.integers(0, 3)) if rng.random() < 0.5 else None
    scale = int(rng.choice([1, 10**6]))
    load_ILP = rng.integers(0, 40, (items, layers, ranks)) * weight_I[:, None, None]
    order = rng.permutation(items)
    instance = LayoutInstance(
        weight_I=weight_I[order],
        num_samples_I=samples_I[order],
        attention_ticks_IC=(
            scale * rng.integers(0, 2000, (items, pick(None, 1, 1, 2, 3)))
        ),
        load_ILP=load_ILP[order].astype(np.int32),
        layer_weight_ticks_L=scale * rng.integers(0, 5, layers),
        offset_ticks=int(rng.integers(0, 100)),
        unit_ticks=1000 * scale,
        num_rows=rows,
        token_cap=cap,
        shard_of_rank_D=rng.permutation(np.repeat(np.arange(shards), size)),
        max_samples_per_cell=limit,
        coupling=coupling,
    )
    layout = Layout(
        row_I=cell_I[order] // (shards * size),
        rank_I=cell_I[order] % (shards * size),
        num_rows=rows,
    )
    return instance, layout
