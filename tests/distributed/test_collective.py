"""All ranks plan one window together, or all of them fall back together."""

import logging
import time
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from rpopt.errors import CommunicationError, InfeasibleError, MismatchError
from rpopt.online import collective
from rpopt.online.collective import Job, collective_plan
from rpopt.online.rank_plan import RankPlan
from rpopt.online.samples import LocalSamples
from rpopt.plans import Placement
from rpopt.rules import PackingRules
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology
from rpopt.window import Window
from tests.cases import HALF, random_window
from tests.distributed.ranks import die, results_of, run_ranks

L, E, K = 2, 4, 2
pytestmark = pytest.mark.dist


def window_of(kind: str) -> Window:
    if kind == "long":  # one sample longer than all the rest together
        length_N = np.array([3, 200, 4, 5, 6, 7, 2, 3, 9])
        return Window(
            length_N=length_N,
            demand_NLE=np.tile(length_N[:, None, None] // 2, (1, L, E))
            + np.where(length_N % 2, 1, 0)[:, None, None] * np.array([1, 1, 0, 0]),
            top_k=K,
        )
    count = {"few": 2, "many": 24}[kind]
    return random_window(3, num_samples=count, num_layers=L, num_experts=E)


def own_samples(window: Window, *, first_rank_idle: bool = False) -> LocalSamples:
    """This rank's share of the window, dealt in blocks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = np.array_split(np.arange(window.num_samples), size - first_rank_idle)
    if first_rank_idle:
        blocks = [np.arange(0), *blocks]
    own = blocks[rank]
    assert window.demand_NLE is not None
    return LocalSamples(
        length_N=window.length_N[own], demand_NLE=window.demand_NLE[own], top_k=K
    )


def job(ep: int, **rules: Any) -> Job:
    policy = {"token_cap": 64, "dummies": True, "oversize": "alone"} | rules
    return Job(
        topology=Topology(dp=dist.get_world_size(), ep=ep),
        rules=PackingRules(**policy),
        cost=HALF,
        seed=0,
        current=Placement.identity(L, E, ep),
    )


def plan_together(
    samples: LocalSamples, wanted: Job, timeout_s: float = 60
) -> RankPlan:
    return collective_plan(
        samples,
        wanted,
        stop=MaxSweeps(2),
        group=None,
        search_group=dist.group.WORLD,
        timeout_s=timeout_s,
    )


def plan_windows(eps: tuple[int, ...]) -> dict[tuple[int, str], RankPlan]:
    plans = {}
    for ep in eps:
        for kind in ("few", "many", "long"):
            own = own_samples(window_of(kind))
            plans[ep, kind] = plan_together(own, job(ep))
    idle = own_samples(window_of("many"), first_rank_idle=True)
    return plans | {(eps[-1], "idle"): plan_together(idle, job(eps[-1]))}


@pytest.mark.parametrize(("world", "eps"), [(2, (1, 2)), (4, (1, 2, 4))])
def test_every_rank_gets_its_part_of_one_plan(world: int, eps: tuple[int, ...]) -> None:
    by_rank = results_of(plan_windows, world, eps)
    for ep, kind in by_rank[0]:
        plans = [answer[ep, kind] for answer in by_rank]
        window = window_of("many" if kind == "idle" else kind)
        assert [plan.reason for plan in plans] == [None] * world
        assert len({plan.plan.digest for plan in plans}) == 1
        require_exact_cover(plans, window)
        require_exact_loss(plans, window)


def require_exact_cover(plans: list[RankPlan], window: Window) -> None:
    """Every sample once, as many cells on every rank, no cell empty but for dummies."""
    assert len({len(plan.cells) for plan in plans}) == 1
    planned = [i for plan in plans for cell in plan.cells for i in cell]
    assert sorted(planned) == list(range(window.num_samples))
    num_cells = sum(len(plan.cells) for plan in plans)
    empty = sum(not cell for plan in plans for cell in plan.cells)
    assert empty == max(0, num_cells - window.num_samples)
    first = plans[0]
    assert planned == first.order_O.tolist()
    assert np.array_equal(first.order_O[first.inverse_N], np.arange(len(planned)))


def require_exact_loss(plans: list[RankPlan], window: Window) -> None:
    """Weighted cell means add up to the mean over the window."""
    loss_N = np.random.default_rng(0).random(window.num_samples)  # mean of a sample
    tokens_N = window.length_N
    by_tokens = by_samples = 0.0
    for plan in plans:
        for r, cell in enumerate(plan.cells):
            if cell:
                i = list(cell)
                by_tokens += plan.token_weight_R[r] * np.average(
                    loss_N[i], weights=tokens_N[i]
                )
                by_samples += plan.sample_weight_R[r] * loss_N[i].mean()
    assert by_tokens == pytest.approx(np.average(loss_N, weights=tokens_N), rel=1e-12)
    assert by_samples == pytest.approx(loss_N.mean(), rel=1e-12)


def fail_to_plan(how: str) -> tuple[RankPlan, float, list[str]]:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rpopt.online.collective").addHandler(handler)
    samples, wanted = own_samples(window_of("many")), job(2)
    real_plan = collective.plan
    if dist.get_rank() == 1:
        if how == "no routes":
            samples = LocalSamples(length_N=samples.length_N)
        elif how == "bad routes":
            assert samples.demand_NLE is not None
            samples = LocalSamples(
                length_N=samples.length_N, demand_NLE=samples.demand_NLE[1:], top_k=K
            )
        elif how == "error":
            collective.plan = lambda *_, **__: 1 / 0  # type: ignore[assignment]
        elif how == "slow":
            collective.plan = lambda *_, **__: time.sleep(30)  # type: ignore[assignment]
        elif how == "other":
            collective.plan = lambda *a, **k: real_plan(  # type: ignore[assignment]
                *a, **(k | {"group": None, "seed": 5})
            )
    started_s = time.monotonic()
    found = plan_together(samples, wanted, timeout_s=4)
    return found, time.monotonic() - started_s, records


@pytest.mark.parametrize("how", ["no routes", "bad routes", "error", "slow", "other"])
def test_a_failure_anywhere_is_the_baseline_everywhere(how: str) -> None:
    answers = results_of(fail_to_plan, 2, how)
    plans = [plan for plan, _, _ in answers]
    window = window_of("many")
    for plan in plans:
        assert plan.is_baseline
        assert plan.reason == plans[0].reason
        assert plan.placement == Placement.identity(L, E, 2)
    require_exact_cover(plans, window)
    require_exact_loss(plans, window)
    assert all(seconds_s < 16 for _, seconds_s, _ in answers)  # 4 waits of 4 s
    assert [len(records) for _, _, records in answers] == [1, 0]


def lose_a_rank() -> None:
    samples, wanted = own_samples(window_of("many")), job(2)
    if dist.get_rank() == 1:
        collective.plan = lambda *_, **__: die()  # type: ignore[assignment]
    plan_together(samples, wanted, timeout_s=4)


def test_a_rank_killed_mid_plan_stops_the_others_with_a_clear_error() -> None:
    results = run_ranks(lose_a_rank, 4, lost=(1,))
    for rank in (0, 2, 3):
        assert isinstance(results[rank], CommunicationError), results[rank]


def refuse() -> bool:
    samples = own_samples(window_of("many"))
    with pytest.raises(MismatchError, match="different jobs"):
        plan_together(samples, job(1 + dist.get_rank()))
    with pytest.raises(MismatchError, match="dp = 4"):
        plan_together(
            samples, Job(**(fields(job(2)) | {"topology": Topology(dp=4, ep=2)}))
        )
    with pytest.raises(InfeasibleError, match="longer than"):
        plan_together(own_samples(window_of("long")), job(2, oversize="error"))
    return True


def fields(wanted: Job) -> dict[str, Any]:
    return {name: getattr(wanted, name) for name in Job.__slots__}


def test_mistakes_are_the_same_error_on_all_ranks() -> None:
    assert results_of(refuse, 2) == [True, True]
