"""Slow layouts: J from its formula, in fractions, and the best of all layouts.

Axis letters: N samples, L MoE layers, E experts.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product

from rpopt.cost import CostModel
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.topology import Topology

Cell = tuple[int, int]


def exact_j(
    length_N: Sequence[int],
    demand_NLE: Sequence[Sequence[Sequence[int]]],
    cell_N: Sequence[Cell],
    *,
    topology: Topology,
    cost: CostModel,
    omega: Fraction,
    slot_LE: Sequence[Sequence[int]],
    num_rows: int,
) -> Fraction:
    """J of the design, before any rounding; all samples kept, none a dummy."""
    shard_D = topology.rank_shards_D.tolist()
    dp, shards, ep = topology.dp, topology.num_shards, topology.ep
    num_layers = len(slot_LE)
    weight = cost.layer_weight_L or (Fraction(1),) * num_layers
    cost_CN = [[c.c1 * n + c.c2 * n**2 for n in length_N] for c in cost.attention]
    all_attention = sum(sum(costs) for costs in cost_CN)

    def attention(row: int, shard: int) -> Fraction:
        """Sum over classes of the share of the class x the largest A(r, d)."""
        ranks = [d for d in range(dp) if shard_D[d] == shard]
        total = Fraction(0)
        for costs in cost_CN:
            if not sum(costs):
                continue
            share = sum(costs) / all_attention
            cells = [
                sum(
                    a for a, cell in zip(costs, cell_N, strict=True) if cell == (row, d)
                )
                for d in ranks
            ]
            total += share * max(cells) / (sum(costs) / dp)
        return total

    def experts(row: int, shard: int) -> Fraction:
        """Sum over layers of w_l x the largest X(r, s, l, q)."""
        total = Fraction(0)
        for layer in range(num_layers):
            per_rank = len(slot_LE[layer]) // ep
            load = [0] * ep
            copies = 0
            for demand_LE, (r, d) in zip(demand_NLE, cell_N, strict=True):
                for expert, wanted in enumerate(demand_LE[layer]):
                    copies += wanted
                    if r == row and shard_D[d] == shard:
                        load[slot_LE[layer][expert] // per_rank] += wanted
            mean = Fraction(copies, shards * ep)
            peak = max(load) / mean if copies else Fraction(1, num_rows)
            total += weight[layer] / sum(weight) * peak
        return total

    ticks = [
        [
            omega * (attention(r, s) if all_attention else Fraction(1, num_rows))
            + (1 - omega) * experts(r, s)
            for s in range(shards)
        ]
        for r in range(num_rows)
    ]
    if topology.coupling == "row":
        return sum((max(row) for row in ticks), Fraction(0))
    return max(sum((row[s] for row in ticks), Fraction(0)) for s in range(shards))


def slow_ticks(instance: LayoutInstance, layout: Layout) -> int:
    """The ticks of J on the rounded data, in plain Python."""
    group: dict[tuple[int, int], list[int]] = {}
    shard_D = instance.shard_of_rank_D.tolist()
    cell_I = list(zip(layout.row_I.tolist(), layout.rank_I.tolist(), strict=True))
    for item, (row, rank) in enumerate(cell_I):
        group.setdefault((row, shard_D[rank]), []).append(item)
    shards = max(shard_D) + 1
    ticks = [[0] * shards for _ in range(instance.num_rows)]
    for (row, shard), items in group.items():
        for attention_I in instance.attention_ticks_IC.T.tolist():
            by_rank: dict[int, int] = {}
            for i in items:
                rank = cell_I[i][1]
                by_rank[rank] = by_rank.get(rank, 0) + attention_I[i]
            ticks[row][shard] += max(by_rank.values())
        for layer, weight in enumerate(instance.layer_weight_ticks_L.tolist()):
            loads = [instance.load_ILP[i, layer].tolist() for i in items]
            ticks[row][shard] += weight * max(map(sum, zip(*loads, strict=True)))
    if instance.coupling == "row":
        return instance.offset_ticks + sum(max(row) for row in ticks)
    return instance.offset_ticks + max(map(sum, zip(*ticks, strict=True)))


def feasible_layouts(instance: LayoutInstance) -> Iterator[Layout]:
    """Every layout that keeps all constraints."""
    cells = list(product(range(instance.num_rows), range(instance.num_ranks)))
    weight, samples = instance.weight_I.tolist(), instance.num_samples_I.tolist()
    limit = instance.max_samples_per_cell or sum(samples)
    for chosen in product(cells, repeat=instance.num_items):
        if len(set(chosen)) < len(cells):
            continue
        tokens, held = dict.fromkeys(cells, 0), dict.fromkeys(cells, 0)
        for item, cell in enumerate(chosen):
            tokens[cell] += weight[item]
            held[cell] += samples[item]
        if max(tokens.values()) <= instance.token_cap and max(held.values()) <= limit:
            row_I, rank_I = zip(*chosen, strict=True)
            yield Layout(row_I=row_I, rank_I=rank_I, num_rows=instance.num_rows)


def optimal_ticks(instance: LayoutInstance) -> int | None:
    """The smallest ticks of J of all layouts; None when there is none."""
    return min(
        (slow_ticks(instance, layout) for layout in feasible_layouts(instance)),
        default=None,
    )
