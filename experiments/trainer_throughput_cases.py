"""What the throughput study trains: windows of recorded routes, and four methods.

A window is a scale model. Lengths come from the generator of the reference windows,
divided by `length_divisor`, and so is the cap. A prompt group (8 samples) reads the
recorded generations of gpt-oss-20b in file order from a random one on: each sample
begins with a whole generation, goes on with the next ones, and cuts the last.

Axis letters: N samples, T tokens, L layers, K top-k, E experts.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rpopt.anneal import anneal
from rpopt.cost import CostModel
from rpopt.counter import generator
from rpopt.io.reference import build_reference_like, data_dir
from rpopt.layout.baselines import baselines, token_karmarkar_karp
from rpopt.layout.bounds import layout_bounds
from rpopt.layout.evaluate import evaluate
from rpopt.planner import choose_placement, plan
from rpopt.plans import Layout, Placement
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.step import Sample
from rpopt.window import Window

BASELINE, REROUTING, PACKING, BOTH = METHODS = (
    "baseline",
    "rerouting",
    "packing",
    "rerouting + packing",
)
LAYERS, EXPERTS, TOP_K, VOCABULARY = 24, 32, 4, 64
_SEED_OF_ROUTES, _SEED_OF_TOKENS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to measure.

    Parameters
    ----------
    cases
        Such as "8 x 4": 8 ranks, ep 4.
    windows, repeats
        Windows per case, and measured steps of each method on each.
    samples
        Samples of a window.
    token_cap, length_divisor
        Tokens of a cell, and what the lengths of real windows are divided by.
    sweeps
        Budget of both methods that search a layout.
    hidden, num_heads, num_kv_heads, head_dim, moe_intermediate
        Widths of the model.
    table
        Name of the committed tables; None to write beside the records.
    """

    cases: tuple[str, ...]
    windows: int
    repeats: int
    samples: int
    token_cap: int
    length_divisor: int
    sweeps: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    moe_intermediate: int
    table: str | None = None

    @property
    def shape(self) -> ModelShape:
        """The model."""
        return ModelShape(
            vocab_size=VOCABULARY,
            hidden=self.hidden,
            num_layers=LAYERS,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_experts=EXPERTS,
            top_k=TOP_K,
            moe_intermediate=self.moe_intermediate,
        )


def step_settings(study: Study) -> dict[str, Any]:
    """Return what a measured step depends on, so that more windows keep the others."""
    return dataclasses.asdict(
        dataclasses.replace(study, cases=(), windows=0, table=None)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A placement and a layout, and what the cost model says of them.

    Parameters
    ----------
    predicted_s, bound_s
        Seconds of the step, and the least of any layout under this placement.
    ideal_s
        Seconds of a perfectly balanced step.
    """

    name: str
    placement: Placement
    layout: Layout
    predicted_s: float
    bound_s: float
    ideal_s: float

    @property
    def cells(self) -> list[list[list[int]]]:
        """The samples of every cell: cells[rank][row]."""
        layout = self.layout
        return [
            [
                np.flatnonzero((layout.rank_I == rank) & (layout.row_I == row)).tolist()
                for row in range(layout.num_rows)
            ]
            for rank in range(int(layout.rank_I.max()) + 1)
        ]


def topology(case: str) -> Topology:
    """Return the ranks of a case such as "8 x 4"."""
    dp, ep = case.split(" x ")
    return Topology(dp=int(dp), ep=int(ep))


def recorded_samples(study: Study, seed: int) -> list[Sample]:
    """Return the samples of a window: real lengths and routes, random tokens."""
    drawn = build_reference_like(
        seed=seed,
        num_samples=study.samples,
        token_cap=study.token_cap * study.length_divisor,
    )
    assert drawn.prompt_group_N is not None
    path = data_dir() / "moe-routing-gptoss20b" / "token_topk_subset.npz"
    with np.load(path) as archive:
        topk_TLK, start_G = archive["topk"], archive["offsets"][:-1]
    length_N = np.maximum(1, drawn.length_N // study.length_divisor)
    places = generator(seed, _SEED_OF_ROUTES)
    tokens = generator(seed, _SEED_OF_TOKENS)
    samples, group, at = [], -1, 0
    for length, own in zip(length_N.tolist(), drawn.prompt_group_N, strict=True):
        if own != group:
            group, at = own, int(places.integers(start_G.size))
        rows = (start_G[at] + np.arange(length)) % len(topk_TLK)
        at = int(np.searchsorted(start_G, rows[-1] + 1)) % start_G.size
        samples.append(
            Sample(
                tokens=tokens.integers(VOCABULARY, size=length + 1),
                routes_TLK=topk_TLK[rows],
                weight_T=np.full(length, 1 / length_N.sum()),
            )
        )
    return samples


def window_of(samples: Sequence[Sample]) -> Window:
    """Return the lengths and demands of samples."""
    return Window(
        length_N=np.array([sample.length for sample in samples]),
        demand_NLE=np.stack([_demand(sample) for sample in samples]),
        top_k=TOP_K,
    )


def methods_of(
    window: Window, ranks: Topology, study: Study, cost: CostModel, seed: int
) -> list[Method]:
    """Return the four methods, all with the plan's number of rows under one cap.

    The baseline's cells stay as they are when experts are rerouted. Packing under the
    identity placement has the same starts and budget as the plan.
    """
    rules, stop = PackingRules(token_cap=study.token_cap), MaxSweeps(study.sweeps)
    planned = plan(window, ranks, rules, cost, stop=stop, seed=seed)
    assert planned.placement is not None
    problems = WindowProblems(window, ranks, rules, cost)
    identity = Placement.identity(LAYERS, EXPERTS, ranks.ep)
    rerouted = choose_placement(problems, None, seed)
    assert rerouted is not None
    plain = problems.layout(identity, planned.layout.num_rows)
    tokens = token_karmarkar_karp(plain)
    assert tokens is not None
    cell_I = np.array(planned.rows.witness["cell_I"])
    starts = list(baselines(plain, cell_I).values())
    packed = anneal(plain, starts=starts, stop=stop, seed=seed).best
    chosen = (
        (BASELINE, identity, tokens),
        (REROUTING, rerouted, tokens),
        (PACKING, identity, packed),
        (BOTH, planned.placement, planned.layout),
    )
    return [_method(problems, *each) for each in chosen]


def _method(
    problems: WindowProblems, name: str, placement: Placement, layout: Layout
) -> Method:
    instance = problems.layout(placement, layout.num_rows)
    bound_ticks = max(bound.value for bound in layout_bounds(instance))
    ideal_s = balanced_s(problems.window, problems.cost) / problems.topology.dp
    return Method(
        name=name,
        placement=placement,
        layout=layout,
        predicted_s=evaluate(instance, layout).j * ideal_s,
        bound_s=bound_ticks / instance.unit_ticks * ideal_s,
        ideal_s=ideal_s,
    )


def balanced_s(window: Window, cost: CostModel) -> float:
    """Return the seconds of a window's work on one rank, under a fitted cost model."""
    (attention,) = cost.attention
    tokens, squared = window.length_N.sum(), (window.length_N**2).sum()
    copies = window.demand_NLE.sum()
    return float(
        attention.c1 * int(tokens)
        + attention.c2 * int(squared)
        + cost.expert_per_copy * int(copies)
    )


def _demand(sample: Sample) -> np.ndarray:
    return np.stack(
        [
            np.bincount(sample.routes_TLK[:, layer].ravel(), minlength=EXPERTS)
            for layer in range(LAYERS)
        ]
    )
