"""Cases of the annealing study: layout instances with their baselines and bounds.

Axis letters: I items, N samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np

from rpopt.cost import AttentionClass, CostModel
from rpopt.counter import generator
from rpopt.io.reference import WINDOWS, Reference, data_dir, read_reference
from rpopt.io.synthetic import R1_LENGTH_QUANTILES, synthetic_window
from rpopt.layout.baselines import baselines
from rpopt.layout.bounds import layout_bounds
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.rows import certify_rows
from rpopt.placement.heuristics import eplb, place
from rpopt.plans import Layout, Placement
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.topology import Topology

TAILS: Mapping[str, Mapping[float, int]] = {
    "long": R1_LENGTH_QUANTILES,
    "short": {0.1: 600, 0.5: 800, 0.9: 1100},
}
COST = CostModel(
    attention=(AttentionClass(c2=Fraction(1, 32768)),), omega=Fraction(1, 2)
)
_DISTURB = 0x64697374
_DISTURBED_SHARE = 20  # one sample in so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A synthetic case.

    Parameters
    ----------
    name
        What the tables call it.
    samples, layers, experts, top_k, seed
        Of the window.
    dp, ep
        Parallel sizes.
    token_cap
        Tokens per cell; longer samples are truncated.
    tail
        "long": lengths of DeepSeek-R1; "short": within a factor of two or so.
    """

    name: str
    samples: int
    dp: int
    ep: int
    token_cap: int
    tail: str = "long"
    layers: int = 8
    experts: int = 64
    top_k: int = 4
    seed: int = 0

    def build(self) -> Reference:
        window = synthetic_window(
            seed=self.seed,
            num_samples=self.samples,
            num_layers=self.layers,
            num_experts=self.experts,
            top_k=self.top_k,
            max_length_tokens=self.token_cap,
            length_quantiles=TAILS[self.tail],
        )
        topology = Topology(dp=self.dp, ep=self.ep)
        return Reference(window, topology, PackingRules(token_cap=self.token_cap), COST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A layout instance and what is known before any search.

    Parameters
    ----------
    instance
        Under the placement for aggregate demand and the certified number of rows.
    baselines
        Layouts by name.
    bound_ticks
        The largest bound that needs no solver.
    variants
        The same samples under EPLB's placement, and other samples in the place of one
        in twenty: what an earlier plan may have been made for.
    """

    instance: LayoutInstance
    baselines: Mapping[str, Layout]
    bound_ticks: int
    variants: Mapping[str, LayoutInstance]

    @property
    def best_baseline(self) -> str:
        """The name of the baseline of smallest J."""
        return min(
            self.baselines,
            key=lambda name: evaluate(self.instance, self.baselines[name]).j_ticks,
        )

    @property
    def fill(self) -> float:
        """Share of the token cap in use."""
        held = int(self.instance.weight_I.sum())
        return held / (self.instance.num_cells * self.instance.token_cap)


@cache
def case(source: Generated | str) -> Case:
    """Place, certify the rows and lay out a generated or a reference window."""
    if isinstance(source, str):
        found = read_reference(data_dir() / WINDOWS, source)
    else:
        found = source.build()
    problems = WindowProblems(*found)
    assert problems.placement is not None
    rows = certify_rows(problems.packing)

    def layout(placement: Placement) -> LayoutInstance:
        return problems.layout(placement, rows.upper)

    instance = layout(place(problems.placement, seed=0))
    packed_I = np.array(rows.witness["cell_I"], dtype=np.int64)
    return Case(
        instance=instance,
        baselines=baselines(instance, packed_I),
        bound_ticks=max(bound.value for bound in layout_bounds(instance)),
        variants={
            "placement": layout(eplb(problems.placement)),
            "samples": disturbed(instance),
        },
    )


def disturbed(instance: LayoutInstance) -> LayoutInstance:
    """Let one item in twenty exchange its length and its routes with another one.

    The multiset of items stays, so J is comparable; a layout of one instance is a
    layout of the other, up to the token cap.
    """
    rng = generator(0, _DISTURB)
    count = max(2, instance.num_items // _DISTURBED_SHARE)
    chosen = rng.choice(instance.num_items, count, replace=False)
    order_I = np.arange(instance.num_items)
    order_I[chosen] = np.roll(chosen, 1)
    return replace(
        instance,
        weight_I=instance.weight_I[order_I],
        num_samples_I=instance.num_samples_I[order_I],
        attention_ticks_IC=instance.attention_ticks_IC[order_I],
        load_ILP=instance.load_ILP[order_I],
    )
