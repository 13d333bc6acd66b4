"""Every recipe of docs/integrations runs as it is written."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rpopt.io.synthetic import synthetic_window
from tests.cases import make_plan, medium_case
from tests.stacks import test_prime_rl as prime
from tests.stacks.packages import real
from tests.stacks.test_experts import logits_of, model_of, tokens
from tests.stacks.test_experts_real import spread
from tests.stacks.test_packers import Base, Spec

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "integrations"
LENGTHS = np.random.default_rng(0).integers(200, 9000, 64).tolist()
NOT_RUN = {"index", "reading"}


def slime(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    config = {
        "dp_size": 4,
        "cp_size": 1,
        "vpp_size": None,
        "microbatch_group_size_per_vp_stage": 1,
    }
    args = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=16384)
    return {"args": args, "config": config, "lengths": LENGTHS}


def verl(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real("verl.utils.seqlen_balancing")
    from verl import DataProto

    mask = (torch.arange(9000) < torch.tensor(LENGTHS)[:, None]).long()
    return {"batch": DataProto.from_dict({"input_ids": mask, "attention_mask": mask})}


def areal(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"mb_spec": Spec(max_tokens_per_mb=16384), "lengths": LENGTHS}


def nemo_rl(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"lengths": LENGTHS}


def megatron(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"lengths": LENGTHS, "DpBalancedScheduler": Base}


def prime_rl(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    prime.install(patch)
    rollouts = [prime.Rollout(i, length) for i, length in enumerate(LENGTHS)]
    return {"rollouts": rollouts, "bin_cost": sum}


def torchtitan(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    moe = real("torchtitan.models.common.moe")
    dispatcher = real("torchtitan.models.common.token_dispatcher")
    config = moe.RoutedExperts.Config(
        inner_experts=moe.GroupedExperts.Config(dim=4, hidden_dim=6, num_experts=8),
        token_dispatcher=dispatcher.LocalTokenDispatcher.Config(num_experts=8, top_k=2),
    )
    model = nn.ModuleList([spread(config.build())])
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}


def transformers(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    model = model_of("Qwen3Moe")
    optimizer = torch.optim.AdamW(model.parameters())
    return {"model": model, "optimizer": optimizer, "tokens": tokens()}


def ray(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    package = real("ray")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if not package.is_initialized():
        package.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=2**27,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
    sizes = {"num_samples": 64, "num_layers": 2, "num_experts": 8, "top_k": 2}
    return {"window": synthetic_window(seed=0, **sizes)}


def writing(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    config = {"num_hidden_layers": 4, "first_k_dense_replace": 1}
    config |= {"num_experts": 8, "num_experts_per_tok": 2}
    Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    case = medium_case()
    return {"window": case.window, "plan": make_plan(case)}


PREPARE: dict[str, Callable[[pytest.MonkeyPatch], dict[str, Any]]] = {
    f.__name__: f
    for f in (
        slime,
        verl,
        areal,
        nemo_rl,
        megatron,
        prime_rl,
        torchtitan,
        transformers,
        ray,
        writing,
    )
}


def test_every_page_is_run_and_linked() -> None:
    pages = {page.stem for page in PAGES.glob("*.md")} - NOT_RUN
    assert pages == set(PREPARE)
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert all(f"({page}.md)" in index for page in pages)


@pytest.mark.parametrize("page", PREPARE)
def test_the_recipe_runs(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names = PREPARE[page](monkeypatch)
    before = logits_of(names["model"]) if page == "transformers" else None
    (recipe,) = re.findall(
        r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text("utf-8"), re.DOTALL
    )
    module = ModuleType("recipe")  # Ray pickles what a recipe defines by value
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "recipe", module)
    exec(compile(recipe, f"{page}.md", "exec"), module.__dict__)
    if page == "transformers":
        assert torch.allclose(before, module.logits, rtol=0, atol=1e-9)
    else:
        assert capsys.readouterr().out
