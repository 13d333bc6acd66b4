"""Joint refinement: never worse, within the budget, better than one after another."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.anneal import anneal
from rpopt.checks import require_feasible
from rpopt.errors import InstanceError
from rpopt.io.synthetic import cap_at_tokens
from rpopt.layout.baselines import baselines
from rpopt.layout.evaluate import evaluate
from rpopt.layout.instance import check
from rpopt.packing.rows import certify_rows
from rpopt.placement.heuristics import place
from rpopt.planner_joint import Joint, group_weights, refine
from rpopt.rules import PackingRules
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps, StopCriterion
from rpopt.topology import Topology
from rpopt.window import Window
from tests.cases import HALF, Case, cases, medium_case


def start(case: Case) -> Any:
    problems = case.problems
    rows = certify_rows(problems.packing)
    placement = place(problems.placement) if problems.placement else None
    instance = problems.layout(placement, rows.upper)
    layouts = baselines(instance, np.array(rows.witness["cell_I"])).values()
    return problems, placement, instance, list(layouts)


def run(case: Case, stop: StopCriterion, seed: int = 0, **more: Any) -> Joint:
    problems, placement, instance, layouts = start(case)
    return refine(
        problems, placement, instance, starts=layouts, stop=stop, seed=seed, **more
    )


@given(cases())
@settings(deadline=None, max_examples=10)
def test_no_alternation_makes_it_worse(case: Case) -> None:
    problems, _, instance, layouts = start(case)
    found = run(case, MaxSweeps(8))
    ticks = [step.best_ticks for step in found.steps]
    assert ticks == sorted(ticks, reverse=True)
    assert found.j_ticks <= ticks[-1]
    assert found.j_ticks <= min(evaluate(instance, x).j_ticks for x in layouts)
    rebuilt = problems.layout(found.placement, found.layout.num_rows)
    require_feasible(check(rebuilt, found.layout), "the layout")
    assert evaluate(rebuilt, found.layout).j_ticks == found.j_ticks


def topics_case(seed: int) -> Case:
    """Few samples per group, each with routes of its own: groups differ."""
    rng = np.random.default_rng(seed)
    length_N = rng.integers(16, 65, 24)
    share_NLE = rng.dirichlet(np.full(16, 0.2), (24, 2))
    window = Window(
        length_N=length_N,
        demand_NLE=cap_at_tokens(
            rng.multinomial(2 * length_N[:, None], share_NLE), length_N
        ),
        top_k=2,
    )
    return Case(
        window=window,
        topology=Topology(dp=8, ep=4),
        rules=PackingRules(token_cap=128),
        cost=HALF,
    )


def test_better_than_one_after_another_with_the_same_sweeps() -> None:
    gains = []
    for seed in range(8):
        case = topics_case(seed)
        _, _, instance, layouts = start(case)
        alone = anneal(instance, starts=layouts, stop=MaxSweeps(200), seed=0)
        joint = run(case, MaxSweeps(200))
        gains.append(1 - joint.j_ticks / alone.j_ticks)
    assert np.mean(gains) > 0.004


def test_sweeps_are_shared_out_and_repeatable() -> None:
    case = medium_case()
    found = run(case, MaxSweeps(40), seed=3)
    assert found.j_ticks == run(case, MaxSweeps(40), seed=3).j_ticks
    assert found.placement == run(case, MaxSweeps(40), seed=3).placement
    assert [step.kind for step in found.steps[:3]] == ["layout", "layout", "placement"]
    assert found.steps[-1].kind == "placement"


def test_nothing_is_placed_without_a_budget_or_without_experts() -> None:
    for case, sweeps in ((medium_case(), 0), (medium_case(routes=False), 5)):
        _, placement, _, _ = start(case)
        found = run(case, MaxSweeps(sweeps))
        assert found.placement == placement
        assert found.num_placements == 0


def test_a_criterion_without_a_limit_is_asked_about_all_sweeps() -> None:
    class Twenty:
        resets = 0

        def reset(self) -> None:
            self.resets += 1

        def __call__(self, *, sweeps: int, best: int, bound: int) -> bool:
            return sweeps >= 20

    stop = Twenty()
    found = run(medium_case(), stop)
    assert found.annealed.sweeps == 20
    assert stop.resets == 1
    limited = run(medium_case(), FirstOf([Twenty(), MaxSweeps(1000)]))
    assert limited.annealed.termination == "stop criterion"


def test_the_time_limit_holds_for_all_steps_together() -> None:
    found = run(medium_case(1, token_cap=512), MaxRuntime(0.3))
    assert found.steps[-1].seconds_s < 3.0  # far less than a limit for every step
    assert len(found.steps) > 2


def test_slow_shards_weigh_most() -> None:
    _, _, instance, layouts = start(medium_case())
    cost = evaluate(instance, layouts[0])
    weight_RS = group_weights(instance, cost).reshape(cost.group_ticks_RS.shape)
    slowest = int(cost.shard_ticks_S.argmax())
    assert (weight_RS[:, slowest] == weight_RS.max()).all()
    assert weight_RS.min() >= 1
    coupled = replace(instance, coupling="row")
    weight_RS = group_weights(coupled, evaluate(coupled, layouts[0])).reshape(
        weight_RS.shape
    )
    assert (weight_RS.argmax(axis=1) == cost.group_ticks_RS.argmax(axis=1)).all()


def test_lengths_only_have_no_groups_to_place_for() -> None:
    problems, _, _, layouts = start(medium_case(routes=False))
    with pytest.raises(InstanceError, match="no experts to place"):
        problems.groups(layouts[0])
    problems, placement, instance, layouts = start(medium_case())
    groups = problems.groups(layouts[0])
    assert groups.num_groups == instance.num_groups
    assert groups.aggregate == problems.placement
