"""Windows and layout instances for the tests.

Axis letters: N samples, L MoE layers, E experts, I items, D DP ranks.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rpopt.cost import AttentionClass, CostModel
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout, Placement
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window


@dataclass(frozen=True, kw_only=True)
class Case:
    """A window, all settings, and one layout of it."""

    window: Window
    topology: Topology
    rules: PackingRules
    cost: CostModel
    placement: Placement | None
    layout: Layout

    @property
    def instance(self) -> LayoutInstance:
        problems = WindowProblems(self.window, self.topology, self.rules, self.cost)
        return problems.layout(self.placement, self.layout.num_rows)


def worked_example(slots: tuple[int, ...] = (0, 1, 2, 3)) -> Case:
    """The example of the design: J = 5/3, and 4/3 with experts 1 and 2 swapped."""
    demand_NLE = [[[4, 0, 0, 0]], [[0, 2, 0, 0]], [[0, 0, 3, 0]], [[0, 0, 0, 3]]]
    return Case(
        window=Window(length_N=[4, 2, 3, 3], demand_NLE=demand_NLE, top_k=1),
        topology=Topology(dp=4, ep=2),
        rules=PackingRules(token_cap=4),
        cost=CostModel(omega=Fraction(1, 2)),
        placement=Placement(slot_LE=[slots], num_ep_ranks=2),
        layout=Layout(row_I=[0] * 4, rank_I=[0, 1, 2, 3], num_rows=1),
    )


def instance(**changes: Any) -> LayoutInstance:
    """Six items, 2 rows x 2 ranks of one shard, one class, one layer, 2 EP ranks."""
    fields: dict[str, Any] = {
        "weight_I": [4, 3, 3, 2, 2, 1],
        "num_samples_I": [1] * 6,
        "attention_ticks_IC": [[16], [9], [9], [4], [4], [1]],
        "load_ILP": [[[4, 0]], [[1, 2]], [[0, 3]], [[1, 1]], [[2, 0]], [[0, 1]]],
        "layer_weight_ticks_L": [5],
        "offset_ticks": 0,
        "unit_ticks": 1000,
        "num_rows": 2,
        "token_cap": 6,
        "shard_of_rank_D": [0, 0],
    }
    return LayoutInstance(**{**fields, **changes})


def random_instance(
    rng: np.random.Generator,
    num_items: int,
    num_rows: int,
    shard_of_rank_D: list[int],
    **changes: Any,
) -> LayoutInstance:
    """Long-tailed weights, skewed loads of 2 layers x 2 EP ranks, a loose cap."""
    weight_I = rng.geometric(0.1, num_items)
    cells = num_rows * len(shard_of_rank_D)
    fields: dict[str, Any] = {
        "weight_I": weight_I,
        "num_samples_I": np.ones_like(weight_I),
        "attention_ticks_IC": np.stack([weight_I, weight_I**2], axis=1),
        "load_ILP": rng.binomial(weight_I[:, None, None], rng.random((2, 2))),
        "layer_weight_ticks_L": rng.integers(0, 20, 2),
        "offset_ticks": 3,
        "unit_ticks": 10**6,
        "num_rows": num_rows,
        "token_cap": int(weight_I.max()) + 2 * int(weight_I.sum()) // cells,
        "shard_of_rank_D": shard_of_rank_D,
    }
    return instance(**{**fields, **changes})


@st.composite
def tiny_instances(draw: st.DrawFn) -> LayoutInstance:
    """Instances that brute force can do; some have no layout at all."""
    num_rows, shard_D = draw(
        st.sampled_from([(1, [0, 1]), (1, [0, 0]), (2, [0, 1]), (2, [1, 0]), (3, [0])])
    )
    cells = num_rows * len(shard_D)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    found = random_instance(rng, draw(st.integers(cells, 5)), num_rows, shard_D)
    least = int(found.weight_I.max())
    return instance(
        **{name: getattr(found, name) for name in INSTANCE_FIELDS},
        token_cap=draw(st.integers(least, found.token_cap)),
        coupling=draw(st.sampled_from(["step", "row"])),
        max_samples_per_cell=draw(st.sampled_from([None, 2, 3])),
    )


INSTANCE_FIELDS = (
    "weight_I",
    "num_samples_I",
    "attention_ticks_IC",
    "load_ILP",
    "layer_weight_ticks_L",
    "offset_ticks",
    "unit_ticks",
    "num_rows",
    "shard_of_rank_D",
)

TOPOLOGIES = (
    Topology(dp=1, ep=1),
    Topology(dp=4, ep=2),
    Topology(dp=2, ep=2, coupling="row"),
    Topology(dp=4, ep=2, shard_of_rank_D=[0, 1, 1, 0], coupling="row"),
    Topology(dp=4, ep=4, tp=2),
    Topology(dp=2, ep=2, tp=2, cp=2),
    Topology(dp=4, ep=2, etp=2, tp=2),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Fully routed windows with every kind of topology and cost, randomly laid out."""
    topology = draw(st.sampled_from(TOPOLOGIES))
    num_rows, layers, top_k = (draw(st.integers(1, n)) for n in (2, 3, 2))
    cells = num_rows * topology.dp
    num_samples = draw(st.integers(cells, cells + 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    length_N = rng.geometric(0.02, num_samples)
    experts = topology.ep * draw(st.integers(1, 2)) * top_k
    share_LE = rng.dirichlet(np.full(experts, 0.5), size=layers)
    demand_NLE = [rng.multinomial(top_k * length, share_LE) for length in length_N]
    classes = [AttentionClass(c1=1, c2=Fraction(1, 8)), AttentionClass(name="linear")]
    cost = CostModel(
        attention=classes[: draw(st.integers(1, 2))],
        omega=draw(st.sampled_from([0, Fraction(1, 3), 1])),
        layer_weight_L=draw(st.sampled_from([None, tuple(range(1, layers + 1))])),
    )
    cell_I = rng.permutation(np.arange(num_samples) % cells)
    row_I, rank_I = np.divmod(cell_I, topology.dp)
    slot_LE = [rng.permutation(experts) for _ in range(layers)]
    return Case(
        window=Window(length_N=length_N, demand_NLE=demand_NLE, top_k=top_k),
        topology=topology,
        rules=PackingRules(token_cap=int(length_N.sum())),
        cost=cost,
        placement=Placement(slot_LE=slot_LE, num_ep_ranks=topology.ep),
        layout=Layout(row_I=row_I, rank_I=rank_I, num_rows=num_rows),
    )
