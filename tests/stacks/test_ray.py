"""Planning as a Ray task and as an actor, on a local Ray."""

import os
from pathlib import Path
from typing import Any

import pytest

from rpopt.stacks.ray import Planner, submit_plan
from rpopt.stacks.settings import plan_cells
from tests.stacks.cases import settings, window
from tests.stacks.packages import real

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Any:
    ray = real("ray")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=2**27,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield ray
    ray.shutdown()


def test_a_task_finds_the_same_plan(ray: Any) -> None:
    routed, chosen = window(0, 16), settings()
    rules = chosen.rules(80)
    found, cells = ray.get(submit_plan(routed, rules, chosen), timeout=240)
    here, here_cells = plan_cells(routed, rules, chosen)
    assert found == here
    assert cells == here_cells


def test_an_actor_plans_from_the_placement_before(ray: Any) -> None:
    actor = ray.remote(Planner).remote(settings())
    rules = settings().rules(80)
    first, second = [
        ray.get(actor.plan.remote(routed, rules), timeout=240)[0]
        for routed in (window(0, 16), window(0, 16))
    ]
    assert not second.placement.num_moved(first.placement).any()
    ray.kill(actor)


def test_the_same_planner_without_ray() -> None:
    planner = Planner(settings())
    found, _ = planner.plan(window(0, 16), settings().rules(80))
    assert planner.settings.current == found.placement
