"""What the drop-in functions cost beyond `rpopt.plan`, on synthetic windows.

python -m experiments.stacks_overhead \
    --config experiments/configs/stacks_overhead.toml --out runs/stacks_overhead

The share is (time of the call - time inside `plan`) / time inside `plan`, both of the
same call, so a busy machine changes it little. Few sweeps make the plans short and the
shares large.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.cost import AttentionClass, CostModel
from rpopt.io.synthetic import synthetic_window
from rpopt.planner import plan
from rpopt.stacks import StackSettings, areal, megatron, nemo_rl, slime, verl
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


def call_slime(window: Window, settings: StackSettings) -> None:
    lengths = window.length_N.tolist()
    slime.build_dp_schedule(
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
    """What `balance_batch` reads and reorders of a DataProto.

    One column holds the lengths, so that summing and reordering a wide mask, which
    verl does in any case, is not counted.
    """

    def __init__(self, length_N: Any) -> None:
        self.batch = {"attention_mask": torch.tensor(length_N)[:, None]}

    def reorder(self, order: torch.Tensor) -> None:
        self.batch = {name: value[order] for name, value in self.batch.items()}


def call_verl(window: Window, settings: StackSettings) -> None:
    batch = Batch(window.length_N)
    verl.balance_batch(
        batch, {}, max_token_len=CAP_TOKENS, settings=settings, window=window
    )


def call_nemo_rl(window: Window, settings: StackSettings) -> None:
    packer = nemo_rl.RpoptPacker(CAP_TOKENS, False, DP, DP, settings=settings)
    packer.expect(window)
    packer.pack(window.length_N.tolist())


def call_areal(window: Window, settings: StackSettings) -> None:
    areal.ffd_allocate(window.length_N.tolist(), CAP_TOKENS, 1, settings=settings)


class SchedulerBase:
    """Construction of a Megatron-Core packing scheduler."""

    def __init__(self, cap: int, cp: int, dp: int, group: int | None) -> None:
        self.max_seqlen_per_dp_cp_rank, self.cp_size, self.dp_size = cap, cp, dp
        self.microbatch_group_size_per_vp_stage = group


def call_megatron(window: Window, settings: StackSettings) -> None:
    kind = megatron.packing_scheduler(SchedulerBase, settings)
    scheduler = kind(CAP_TOKENS, 1, DP, None)
    scheduler.window = window
    scheduler.get_groups_and_subsamples(list(enumerate(window.length_N.tolist())))


CALLS: dict[str, Callable[[Window, StackSettings], None]] = {
    "slime build_dp_schedule": call_slime,
    "verl balance_batch": call_verl,
    "NeMo-RL pack": call_nemo_rl,
    "AReaL ffd_allocate": call_areal,
    "Megatron-Core scheduler": call_megatron,
}


def share(call: Callable[[], None]) -> float:
    """Return the time of a call outside `plan` over that inside."""
    inside_s = 0.0

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside_s
        began_s = perf_counter()
        found = plan(*args, **kwargs)
        inside_s += perf_counter() - began_s
        return found

    with patch("rpopt.stacks.settings.plan", timed):
        began_s = perf_counter()
        call()
        whole_s = perf_counter() - began_s
    return (whole_s - inside_s) / inside_s


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
    call = CALLS[run.method]
    call(window, settings)  # compiles and fills caches
    shares = [share(lambda: call(window, settings)) for _ in range(sizes["repeats"])]
    return Outcome(
        instance_digest=window.digest,
        objective=statistics.median(shares),
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=perf_counter() - began_s,
        metrics={"min": min(shares), "max": max(shares), "count": len(shares)},
    )


def table(records: list[RunRecord]) -> list[dict[str, Any]]:
    return [
        {
            "drop-in": record["method"],
            "beyond plan (median)": f"{100 * record['objective']:.2f} %",
            "min to max": f"{100 * record['metrics']['min']:.2f} to"
            f" {100 * record['metrics']['max']:.2f} %",
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
        for name in CALLS
    ]
    records = run_all(runs, solve, out=args.out, config=study)
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, table(records))
    print(tables.markdown(path))


if __name__ == "__main__":
    main()
