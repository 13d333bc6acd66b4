"""What the drop-in functions cost beyond `rpopt.plan`, on synthetic windows.

python -m experiments.stacks_overhead \
    --config experiments/configs/stacks_overhead.toml --out runs/stacks_overhead

The share is (time of the call - time inside `plan` - time inside the stack's own
functions) / time inside `plan`, all of the same call, so a busy machine changes it
little. Few sweeps make the plans short and the shares large. The stack's own functions
are those that it runs with or without rpopt: verl reorders its batch with its padded
mask, prime-rl cuts, joins and pads samples. Their share has a column of its own.
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.cost import AttentionClass, CostModel
from rpopt.io.synthetic import synthetic_window
from rpopt.planner import plan
from rpopt.stacks import (
    StackSettings,
    areal,
    megatron,
    nemo_rl,
    prime_rl,
    slime,
    verl,
)
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology
from rpopt.window import Window

CAP_TOKENS = 16384
DP = 16
COST = CostModel(attention=(AttentionClass(c1=1, c2="1/24576"),), omega="1/2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """How large the windows are, and how often each call is timed."""

    samples: int
    layers: int
    experts: int
    sweeps: int
    repeats: int
    table: str | None = None


class Clock:
    """Adds up the time that passes inside some functions."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began_s = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.passed_s += perf_counter() - began_s

        return run


Call = Callable[[], Any]
"""One call of a drop-in function, prepared with what its stack has at hand."""


def prepare_slime(window: Window, settings: StackSettings, own: Clock) -> Call:
    lengths = window.length_N.tolist()
    return lambda: slime.build_dp_schedule(
        SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=CAP_TOKENS),
        {
            "dp_size": DP,
            "cp_size": 1,
            "vpp_size": None,
            "microbatch_group_size_per_vp_stage": 1,
        },
        lengths,
        global_batch_size=len(lengths),
        rollout_indices=list(range(len(lengths))),
        settings=settings,
        window=window,
    )


class Batch:
    """What `balance_batch` reads and reorders of a DataProto: a padded mask."""

    def __init__(self, window: Window, own: Clock) -> None:
        length_N1 = torch.tensor(window.length_N)[:, None]
        mask = (torch.arange(CAP_TOKENS) < length_N1).to(torch.int64)
        self.batch = {"attention_mask": mask}
        self.reorder = own.timed(self._reorder)

    def _reorder(self, order: torch.Tensor) -> None:
        self.batch = {name: value[order] for name, value in self.batch.items()}


def prepare_verl(window: Window, settings: StackSettings, own: Clock) -> Call:
    batch = Batch(window, own)
    return lambda: verl.balance_batch(
        batch, {}, max_token_len=CAP_TOKENS, settings=settings, window=window
    )


def prepare_nemo_rl(window: Window, settings: StackSettings, own: Clock) -> Call:
    packer = nemo_rl.RpoptPacker(CAP_TOKENS, False, DP, DP, settings=settings)
    packer.expect(window)
    lengths = window.length_N.tolist()
    return lambda: packer.pack(lengths)


def prepare_areal(window: Window, settings: StackSettings, own: Clock) -> Call:
    lengths = window.length_N.tolist()
    return lambda: areal.ffd_allocate(lengths, CAP_TOKENS, 1, settings=settings)


class SchedulerBase:
    """Construction of a Megatron-Core packing scheduler."""

    def __init__(self, cap: int, cp: int, dp: int, group: int | None) -> None:
        self.max_seqlen_per_dp_cp_rank, self.cp_size, self.dp_size = cap, cp, dp
        self.microbatch_group_size_per_vp_stage = group


def prepare_megatron(window: Window, settings: StackSettings, own: Clock) -> Call:
    scheduler = megatron.packing_scheduler(SchedulerBase, settings)(
        CAP_TOKENS, 1, DP, None
    )
    scheduler.window = window
    samples = list(enumerate(window.length_N.tolist()))
    return lambda: scheduler.get_groups_and_subsamples(samples)


def prime_rl_functions(own: Clock) -> ModuleType:
    """Stand in for what `prepare_batch` calls; prime-rl cannot be installed."""

    def sample(length: int, routes: Any) -> SimpleNamespace:
        return SimpleNamespace(
            input_ids=[0] * length, mm_kwargs=None, routed_experts=routes
        )

    def pack(samples: list[Any], *sizes: Any) -> list[Any]:
        return [sample(sum(len(s.input_ids) for s in samples), b"")]

    module: Any = ModuleType("prime_rl.trainer.batch")
    module.prepare_sample = own.timed(lambda rollout, seq_len: sample(rollout, b""))
    module.packed_samples_into_micro_bs = own.timed(pack)
    module.pad_micro_batch = own.timed(lambda batch, multiple: batch)
    module._make_dummy_batch = own.timed(copy.deepcopy)  # noqa: SLF001
    return module


def prepare_prime_rl(window: Window, settings: StackSettings, own: Clock) -> Call:
    trainer: Any = ModuleType("prime_rl.trainer")
    trainer.batch = prime_rl_functions(own)
    modules = {"prime_rl": ModuleType("prime_rl"), "prime_rl.trainer": trainer}
    lengths = window.length_N.tolist()

    def call() -> None:
        with patch.dict("sys.modules", modules):
            prime_rl.prepare_batch(
                lengths, CAP_TOKENS, DP, sum, settings=settings, window=window
            )

    return call


PREPARE: dict[str, Callable[[Window, StackSettings, Clock], Call]] = {
    "slime build_dp_schedule": prepare_slime,
    "verl balance_batch": prepare_verl,
    "NeMo-RL pack": prepare_nemo_rl,
    "AReaL ffd_allocate": prepare_areal,
    "Megatron-Core scheduler": prepare_megatron,
    "prime-rl prepare_batch": prepare_prime_rl,
}


def shares(call: Call, own: Clock) -> tuple[float, float]:
    """Return the time outside `plan`, ours and the stack's own, over that inside."""
    inside, whole = Clock(), Clock()
    with patch("rpopt.stacks.settings.plan", inside.timed(plan)):
        whole.timed(call)()
    ours_s = whole.passed_s - inside.passed_s - own.passed_s
    return ours_s / inside.passed_s, own.passed_s / inside.passed_s


def solve(run: Run) -> Outcome:
    """Measure one drop-in; the objective is its median share."""
    began_s = perf_counter()
    sizes = run.params
    window = synthetic_window(
        seed=0,
        num_samples=sizes["samples"],
        num_layers=sizes["layers"],
        num_experts=sizes["experts"],
        top_k=4,
        max_length_tokens=CAP_TOKENS,
    )
    settings = StackSettings(
        topology=Topology(dp=DP, ep=8), cost=COST, stop=MaxSweeps(sizes["sweeps"])
    )
    prepare = PREPARE[run.method]
    prepare(window, settings, Clock())()  # compiles and fills caches
    found = []
    for _ in range(sizes["repeats"]):
        own = Clock()
        found.append(shares(prepare(window, settings, own), own))
    ours, stacks = zip(*found, strict=True)
    return Outcome(
        instance_digest=window.digest,
        objective=statistics.median(ours),
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=perf_counter() - began_s,
        metrics={
            "min": min(ours),
            "max": max(ours),
            "own": statistics.median(stacks),
            "count": len(ours),
        },
    )


def table(records: list[RunRecord]) -> list[dict[str, Any]]:
    return [
        {
            "drop-in": record["method"],
            "beyond plan (median)": f"{100 * record['objective']:.2f} %",
            "min to max": f"{100 * record['metrics']['min']:.2f} to"
            f" {100 * record['metrics']['max']:.2f} %",
            "the stack's own": f"{100 * record['metrics']['own']:.2f} %",
            "repeats": record["metrics"]["count"],
        }
        for record in records
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    names = ("samples", "layers", "experts", "sweeps", "repeats")
    params = {name: getattr(study, name) for name in names}
    runs = [
        Run(
            problem="stacks",
            instance="synthetic",
            method=name,
            seed=0,
            stop=f"{study.sweeps} sweeps",
            params=params,
        )
        for name in PREPARE
    ]
    records = run_all(runs, solve, out=args.out, config=study)
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, table(records))
    print(tables.markdown(path))


if __name__ == "__main__":
    main()
