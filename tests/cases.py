"""Windows, settings and plans that several tests share.

Axis letters: N samples, L MoE layers, E experts.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rpopt.cost import AttentionClass, CostModel
from rpopt.layout.baselines import baselines
from rpopt.layout.bounds import layout_bounds
from rpopt.layout.evaluate import evaluate
from rpopt.packing.rows import certify_rows
from rpopt.placement.bounds import peak_bounds
from rpopt.placement.heuristics import lpt
from rpopt.plans import Plan
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window

HALF = CostModel(
    attention=(AttentionClass(c1=Fraction(1), c2=Fraction(1, 32)),),
    omega=Fraction(1, 2),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A window and all that a plan of it depends on."""

    window: Window
    topology: Topology
    rules: PackingRules
    cost: CostModel

    @property
    def problems(self) -> WindowProblems:
        return WindowProblems(self.window, self.topology, self.rules, self.cost)


def random_demand(
    rng: np.random.Generator, routed_N: Any, num_layers: int, num_experts: int, k: int
) -> Any:
    """Multinomial demand with some skew, [N, L, E]."""
    share_LE = rng.dirichlet(np.ones(num_experts), num_layers)
    copies_NL = np.repeat(k * np.asarray(routed_N)[:, None], num_layers, axis=1)
    return rng.multinomial(copies_NL, share_LE)


def random_window(
    seed: int,
    *,
    num_samples: int,
    num_layers: int = 2,
    num_experts: int = 4,
    top_k: int = 2,
    longest: int = 16,
    unrouted: int = 0,
    **more: Any,
) -> Window:
    """A window of random lengths; `unrouted` tokens of each sample have no route."""
    rng = np.random.default_rng(seed)
    length_N = rng.integers(1, longest + 1, num_samples)
    routed_N = np.maximum(length_N - unrouted, 0)
    return Window(
        length_N=length_N,
        routed_tokens_N=routed_N,
        demand_NLE=random_demand(rng, routed_N, num_layers, num_experts, top_k),
        top_k=top_k,
        **more,
    )


@st.composite
def topologies(draw: st.DrawFn, num_experts: int = 4) -> Topology:
    """Small topologies: shards of one or more ranks, slices, shuffled maps."""
    tp, cp, etp = (draw(st.sampled_from((1, 2))) for _ in range(3))
    ep = draw(st.sampled_from([p for p in (1, 2, 4) if num_experts % p == 0]))
    shard_size = max(1, etp * ep // (tp * cp))
    num_shards = draw(st.integers(1, max(1, 4 // shard_size)))
    ranks = np.arange(num_shards * shard_size) // shard_size
    order = draw(st.permutations(ranks.tolist()))
    return Topology(
        dp=ranks.size,
        ep=ep,
        tp=tp,
        cp=cp,
        etp=etp,
        shard_of_rank_D=draw(st.sampled_from((None, np.array(order)))),
        coupling=draw(st.sampled_from(("step", "row"))),
    )


@st.composite
def costs(draw: st.DrawFn, num_layers: int = 2) -> CostModel:
    """Cost models with one or two attention classes, weighted layers, both modes."""
    number = st.fractions(0, 3, max_denominator=50)
    classes = tuple(
        AttentionClass(name=f"class {c}", c1=draw(number), c2=draw(number) / 16)
        for c in range(draw(st.integers(1, 2)))
    )
    weight = st.lists(st.integers(0, 5), min_size=num_layers, max_size=num_layers)
    weights = draw(st.none() | weight.filter(any))
    omega = draw(st.none() | st.fractions(0, 1, max_denominator=50))
    return CostModel(
        attention=classes,
        omega=omega,
        expert_per_copy=draw(number) + (omega is None),
        layer_weight_L=None if weights is None else tuple(map(Fraction, weights)),
    )


@st.composite
def cases(draw: st.DrawFn, max_samples: int = 12) -> Case:
    """Small windows of every kind, with settings under which a plan exists."""
    topology, num_layers = draw(topologies()), draw(st.integers(0, 2))
    num_samples = draw(st.integers(1, max_samples))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["prompt_group_N"] = rng.integers(-1, 3, num_samples)
    if draw(st.booleans()):
        more["bundle_N"] = rng.integers(-1, num_samples, num_samples)
    unrouted = draw(st.sampled_from((0, 1, 6)))
    window = (
        random_window(
            seed,
            num_samples=num_samples,
            num_layers=num_layers,
            unrouted=unrouted,
            **more,
        )
        if num_layers
        else Window(length_N=rng.integers(1, 17, num_samples), **more)
    )
    most = 1 if window.bundle_N is None else int(np.bincount(window.bundle_N + 1).max())
    rules = PackingRules(
        token_cap=draw(st.integers(16, 60)),
        pad_multiple=draw(st.sampled_from((1, 4))),
        row_multiple=draw(st.sampled_from((1, 2))),
        max_samples_per_cell=draw(st.none() | st.integers(most, most + 3)),
        oversize="alone",
        dummies=True,
        missing_routes=draw(st.sampled_from(("proportional", "uniform", "ignore"))),
    )
    cost = draw(costs(num_layers)) if num_layers else draw(costs())
    return Case(window=window, topology=topology, rules=rules, cost=cost)


def make_plan(case: Case) -> Plan:
    """A plan of a window without annealing: LPT placement and the best baseline."""
    problems = case.problems
    placement = lpt(problems.placement) if problems.placement else None
    rows = certify_rows(problems.packing)
    instance = problems.layout(placement, rows.upper)
    found = baselines(instance, np.array(rows.witness["cell_I"])).values()
    layout = min(found, key=lambda layout: evaluate(instance, layout).j_ticks)
    return Plan(
        window_digest=case.window.digest,
        topology=case.topology,
        rules=case.rules,
        cost=case.cost,
        placement=placement,
        layout=layout,
        rows=rows,
        placement_bounds=peak_bounds(problems.placement) if problems.placement else (),
        layout_bounds=layout_bounds(instance),
        j_ticks=evaluate(instance, layout).j_ticks,
        unit_ticks=instance.unit_ticks,
        method="best baseline",
        seed=0,
        termination="no search",
    )


def medium_case(seed: int = 0, *, routes: bool = True, **rules: Any) -> Case:
    """40 samples on 4 ranks of 2 shards; some rows, some spare room."""
    window = random_window(
        seed, num_samples=40, num_layers=3, num_experts=8, longest=64, unrouted=1
    )
    if not routes:
        window = Window(length_N=window.length_N)
    return Case(
        window=window,
        topology=Topology(dp=4, ep=2),
        rules=PackingRules(**{"token_cap": 128, "pad_multiple": 4} | rules),
        cost=HALF,
    )
