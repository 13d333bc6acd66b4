"""slime (and its fork miles): the DP schedule of a rollout.

Signature and return value of `slime.utils.dp_schedule.build_dp_schedule`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rpopt.errors import InstanceError
from rpopt.rules import PackingRules
from rpopt.stacks.settings import StackSettings, plan_cells, select, window_of
from rpopt.window import Window

Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]


def build_dp_schedule(
    args: Any,
    train_parallel_config: dict[str, Any],
    total_lengths: list[int],
    *,
    global_batch_size: int,
    rollout_indices: list[int],
    settings: StackSettings,
    window: Window | None = None,
) -> Schedule:
    """Plan every step of a rollout: samples and micro-batches of each DP rank.

    Parameters
    ----------
    args
        slime's namespace: `use_dynamic_batch_size`, `max_tokens_per_gpu`,
        `micro_batch_size`.
    train_parallel_config
        `dp_size`, `cp_size`, `vpp_size` and `microbatch_group_size_per_vp_stage`.
    total_lengths
        Tokens of each sample.
    global_batch_size
        Rollouts per step; trailing rollouts that fill no step are left out.
    rollout_indices
        Rollout of each sample; samples of one rollout stay in one step.
    settings
        What slime does not know; a sample above the cap sits alone unless they say
        otherwise.
    window
        The same samples with routes; without it attention alone is balanced.

    Returns
    -------
    partitions, micro_batch_indices, num_microbatches, global_batch_sizes
        Sample ids of each rank in order; per rank the micro-batches as positions in
        its partition; micro-batches per rank of each step; rollouts of each step.

    Raises
    ------
    RpoptError
        When a step has no plan, or the sizes do not fit the settings.
    """
    config = train_parallel_config
    settings.require_sizes(dp=config["dp_size"], cp=config["cp_size"])
    whole = window_of(total_lengths, window)
    rules = _rules(args, config, whole, settings)
    partitions: list[list[int]] = [[] for _ in range(config["dp_size"])]
    micro_batches: list[list[list[int]]] = [[] for _ in range(config["dp_size"])]
    rows: list[int] = []
    steps = _steps(rollout_indices, global_batch_size)
    for samples in steps:
        found, cells = plan_cells(select(whole, samples), rules, settings)
        settings = replace(settings, current=found.placement)
        rows.append(found.layout.num_rows)
        for rank, rank_cells in enumerate(cells):
            for cell in rank_cells:
                first = len(partitions[rank])
                partitions[rank] += [samples[i] for i in cell]
                micro_batches[rank].append(list(range(first, first + len(cell))))
    return partitions, micro_batches, rows, [global_batch_size] * len(steps)


def _rules(
    args: Any, config: dict[str, Any], window: Window, settings: StackSettings
) -> PackingRules:
    """Cap tokens with dynamic batches, count samples with batches of a fixed size."""
    multiple = 1
    if (config["vpp_size"] or 1) > 1:
        multiple = config["microbatch_group_size_per_vp_stage"]
    if args.use_dynamic_batch_size:
        cap = args.max_tokens_per_gpu * config["cp_size"]
        return settings.rules(cap, oversize="alone", row_multiple=multiple)
    return settings.rules(
        window.total_tokens + window.num_samples * settings.pad_multiple,
        max_samples_per_cell=args.micro_batch_size,
        row_multiple=multiple,
    )


def _steps(rollouts: Sequence[int], rollouts_per_step: int) -> list[list[int]]:
    """Return the samples of each step, whole rollouts in order of appearance."""
    samples_of: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollouts):
        samples_of.setdefault(rollout, []).append(sample)
    groups = list(samples_of.values())
    num_steps = len(groups) // rollouts_per_step
    if num_steps == 0:
        raise InstanceError(
            f"{len(groups)} rollouts fill no step of global_batch_size ="
            f" {rollouts_per_step}; lower it or collect more rollouts"
        )
    starts = range(0, num_steps * rollouts_per_step, rollouts_per_step)
    return [sum(groups[s : s + rollouts_per_step], []) for s in starts]
