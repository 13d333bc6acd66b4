"""Signatures of the stacks, and the real packages where they are installed.

The packages are heavy, so they may lie in a folder of their own, installed without
their dependencies and named by `RPOPT_STACK_PACKAGES`; sources are read, not imported.
"""

import ast
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = os.environ.get("RPOPT_STACK_PACKAGES")
if FOLDER and FOLDER not in sys.path:
    sys.path.append(FOLDER)  # behind everything that is installed properly

SIGNATURES = {
    # THUDM/slime 624b824a, slime/utils/dp_schedule.py
    "slime.build_dp_schedule": "def f(args, train_parallel_config, total_lengths, *,"
    " global_batch_size, rollout_indices): ...",
    # areal-project/AReaL cbff54d6, areal/utils
    "areal.ffd_allocate": "def f(values, capacity, min_groups,"
    " n_groups_divisor=1): ...",
    "areal.allocate_balanced_mbs": "def f(mb_spec, lens): ...",
    "areal.allocate_balanced_mbs_synced": "def f(mb_spec, lens, group=None): ...",
    # verl-project/verl 1dda039b, verl/utils/seqlen_balancing.py and ray_trainer.py
    "verl.rearrange_micro_batches": "def f(batch, max_token_len, dp_group=None,"
    " num_batches_divided_by=None, same_micro_num_in_dp=True, min_num_micro_batch=None,"
    " use_dynamic_bsz_balance=True, force_group_size=1): ...",
    "verl.balance_batch": "def f(batch, metrics, logging_prefix='global_seqlen',"
    " keep_minibatch=False): ...",
    # PrimeIntellect-ai/prime-rl 559b4477, src/prime_rl/trainer/batch.py
    "prime_rl.prepare_batch": "def f(rollouts, seq_len, num_train_workers, bin_cost,"
    " pad_to_multiple_of=1): ...",
    # NVIDIA-NeMo/RL 7ea279ab, nemo_rl/data/packing/algorithms.py
    "nemo_rl.RpoptPacker.__init__": "def f(self, bin_capacity, collect_metrics=False,"
    " min_bin_count=None, bin_count_multiple=None): ...",
    "nemo_rl.RpoptPacker.pack": "def f(self, sequence_lengths): ...",
}


def parameters(source: str, name: str = "f") -> list[tuple[str, Any]]:
    """Pairs (name, default or "required") of one function, in order, from its text."""
    node = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    positional = [arg.arg for arg in node.args.args]
    missing = len(positional) - len(node.args.defaults)
    defaults = ["required"] * missing + [ast.unparse(d) for d in node.args.defaults]
    keyword = [arg.arg for arg in node.args.kwonlyargs]
    kw_defaults = [
        "required" if d is None else ast.unparse(d) for d in node.args.kw_defaults
    ]
    return list(zip(positional + keyword, defaults + kw_defaults, strict=True))


def source(package: str, path: str) -> str:
    """The text of a file of an installed package; skips where it is absent."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(
            f"{package} is not installed (RPOPT_STACK_PACKAGES names its folder)"
        )
    file = Path(found.submodule_search_locations[0]) / path
    if not file.exists():
        pytest.skip(f"this release of {package} has no {path}")
    return file.read_text(encoding="utf-8")


def real(module: str) -> Any:
    """A module of a stack; skips with the reason where it cannot be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} cannot be imported: {error}")


def run_as_module(text: str, name: str, patch: pytest.MonkeyPatch) -> Any:
    """The text of one file of a package as a module, without the package."""
    module = ModuleType(name)
    patch.setitem(sys.modules, name, module)  # dataclasses look their module up
    exec(compile(text, name, "exec"), module.__dict__)
    return module
