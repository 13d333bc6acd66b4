"""verl: one plan on the driver, carried to the workers with the samples.

`balance_batch` stands for the trainer's `_balance_batch` and `rearrange_micro_batches`
for `verl.utils.seqlen_balancing.rearrange_micro_batches`. The driver plans all ranks,
orders the batch so that verl's even split gives every rank its samples, and marks each
sample with its micro-batch; the workers only group what they got.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rpopt.errors import InfeasibleError, InstanceError, MismatchError
from rpopt.records import Int64Array
from rpopt.rules import PackingRules
from rpopt.stacks.even import even_out, require_divisible
from rpopt.stacks.local import agree, pack_rank
from rpopt.stacks.settings import Cells, StackSettings, plan_cells, select, window_of
from rpopt.window import Window

ROW_KEY = "rpopt_row"
"""The field of a batch that holds each sample's micro-batch, int64 [B]."""


def balance_batch(
    batch: Any,
    metrics: dict[str, Any],
    logging_prefix: str = "global_seqlen",
    keep_minibatch: bool = False,
    *,
    max_token_len: int,
    settings: StackSettings,
    mini_batch_size: int | None = None,
    num_batches_divided_by: int | None = None,
    force_group_size: int = 1,
    window: Window | None = None,
) -> None:
    """Reorder a `DataProto` in place so that each rank gets what the plan gives it.

    Parameters
    ----------
    batch
        The whole batch, on the driver.
    metrics
        Receives J and the number of micro-batches per rank.
    logging_prefix
        Prefix of the metrics.
    keep_minibatch
        Plan each mini-batch of `mini_batch_size` consecutive samples by itself, as
        needed when a batch is trained in several optimizer steps.
    max_token_len
        Tokens that a micro-batch may hold: `ppo_max_token_len_per_gpu` times the
        sequence-parallel size.
    settings
        What verl does not know.
    mini_batch_size
        Samples of one optimizer step on all ranks, with `keep_minibatch`.
    num_batches_divided_by
        The number of micro-batches is a multiple of this (virtual pipeline).
    force_group_size
        So many consecutive samples stay in one micro-batch.
    window
        The same samples with routes; without it attention alone is balanced.

    Raises
    ------
    RpoptError
        When there is no plan, or ranks or groups do not divide the batch.
    """
    settings.require_every_sample("verl")
    lengths = batch.batch["attention_mask"].flatten(1).sum(1).tolist()
    whole = window_of(lengths, window)
    size = len(lengths)
    if keep_minibatch:
        if mini_batch_size is None:
            raise InstanceError("keep_minibatch needs mini_batch_size; give it")
        size = mini_batch_size
        require_divisible(len(lengths), size)
    rules = settings.rules(max_token_len, row_multiple=num_batches_divided_by or 1)
    order: list[list[int]] = [[] for _ in range(settings.topology.dp)]
    row_of = np.zeros(len(lengths), dtype=np.int64)
    num_rows, j_of_steps = 0, []
    for first in range(0, len(lengths), size):
        part = select(whole, range(first, first + size))
        j, cells = _even_plan(part, rules, settings, force_group_size)
        j_of_steps.append(j)
        for rank, rows in enumerate(cells):
            for row, cell in enumerate(rows):
                samples = [first + i for i in cell]
                order[rank] += samples
                row_of[samples] = num_rows + row
        num_rows += len(cells[0])
    _reorder(batch, np.concatenate(order).astype(np.int64), row_of)
    metrics[f"{logging_prefix}/planned_j"] = sum(j_of_steps) / len(j_of_steps)
    metrics[f"{logging_prefix}/micro_batches"] = num_rows


def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
    *,
    settings: StackSettings,
) -> tuple[list[Any], list[list[int]]]:
    """Return the micro-batches of a rank and the positions of their samples.

    A batch that `balance_batch` has marked is grouped by its marks, so every pass
    packs alike. Any other batch is planned for this rank alone, and the ranks of
    `dp_group` agree on the number. Lengths are real ones, never the padded width.

    Parameters
    ----------
    batch
        A TensorDict with `input_ids`, nested, or padded with `attention_mask`.
    max_token_len
        Tokens that a micro-batch may hold.
    dp_group, num_batches_divided_by, same_micro_num_in_dp, min_num_micro_batch
        As in verl.
    use_dynamic_bsz_balance
        Accepted for the signature; micro-batches are always balanced.
    force_group_size
        So many consecutive samples stay in one micro-batch.
    settings
        What verl does not know.

    Raises
    ------
    RpoptError
        When there are no such micro-batches; on all ranks of `dp_group` alike.
    """
    settings.require_every_sample("verl")
    length_N = _lengths(batch)
    rows = batch[ROW_KEY].tolist() if ROW_KEY in batch.keys() else None  # noqa: SIM118

    multiple = num_batches_divided_by or 1

    def pack(min_rows: int) -> list[list[int]]:
        if rows is not None:
            return _marked(rows, length_N, max_token_len, settings, min_rows, multiple)
        return pack_rank(
            Window(length_N=length_N, bundle_N=_bundles(length_N, force_group_size)),
            max_token_len,
            settings,
            min_rows=min_rows,
            row_multiple=multiple,
        )

    minimum = min_num_micro_batch or 1
    if dp_group is not None and same_micro_num_in_dp:
        positions = agree(pack, min_rows=minimum, group=dp_group)
    else:
        positions = pack(minimum)
    from verl.utils.tensordict_utils import index_select_tensor_dict

    return [index_select_tensor_dict(batch, cell) for cell in positions], positions


def _even_plan(
    window: Window, rules: PackingRules, settings: StackSettings, group_size: int
) -> tuple[float, Cells]:
    """Return J and the cells of one step, as many samples on each rank.

    A tight cap may leave no room to even out the ranks; then more rows are planned.
    """
    bundle_N = _bundles(window.length_N, group_size)
    if bundle_N is not None:
        fields = ("length_N", "routed_tokens_N", "demand_NLE", "top_k", "layer_ids_L")
        window = Window(
            bundle_N=bundle_N, **{name: getattr(window, name) for name in fields}
        )
    num_units = window.num_samples // group_size
    require_divisible(num_units, settings.topology.dp)
    padded_N = -(-window.length_N // rules.pad_multiple) * rules.pad_multiple
    tokens_U = padded_N.reshape(num_units, group_size).sum(axis=1)
    min_rows = 1
    while True:
        found, cells = plan_cells(window, rules, settings, min_rows=min_rows)
        units = [
            [[i // group_size for i in cell[::group_size]] for cell in rows]
            for rows in cells
        ]
        try:
            even = even_out(units, tokens_U, rules.token_cap, settings.topology)
            break
        except InfeasibleError:
            min_rows = found.layout.num_rows + 1
    return found.j, [
        [[u * group_size + i for u in cell for i in range(group_size)] for cell in rows]
        for rows in even
    ]


def _bundles(length_N: Int64Array, group_size: int) -> Int64Array | None:
    if group_size == 1:
        return None
    if length_N.size % group_size:
        raise InstanceError(
            f"{length_N.size} samples are no whole groups of force_group_size ="
            f" {group_size}; give whole groups"
        )
    return np.arange(length_N.size, dtype=np.int64) // group_size


def _reorder(batch: Any, order: Int64Array, row_of: Int64Array) -> None:
    """Reorder a DataProto and mark every sample with its micro-batch."""
    import torch

    batch.reorder(torch.from_numpy(order))
    batch.batch[ROW_KEY] = torch.from_numpy(row_of[order])


def _lengths(batch: Any) -> Int64Array:
    """Return the real length of every sample, int64 [B]."""
    if batch["input_ids"].is_nested:
        lengths = batch["input_ids"].offsets().diff()
    else:
        lengths = batch["attention_mask"].sum(dim=1)
    return np.asarray(lengths.cpu().numpy(), dtype=np.int64)


def _marked(
    rows: Sequence[int],
    length_N: Int64Array,
    max_token_len: int,
    settings: StackSettings,
    min_rows: int,
    row_multiple: int,
) -> list[list[int]]:
    """Group positions by the driver's marks, and check count and cap once more."""
    pad = settings.pad_multiple
    by_row: dict[int, list[int]] = {row: [] for row in sorted(set(rows))}
    for position, row in enumerate(rows):
        by_row[row].append(position)
    if len(by_row) < min_rows or len(by_row) % row_multiple:
        raise MismatchError(
            f"the plan has {len(by_row)} micro-batches here, where at least {min_rows}"
            f" and a multiple of {row_multiple} are needed; keep samples as they were"
            " planned, give balance_batch the same num_batches_divided_by, and"
            " keep_minibatch where a batch is trained in several optimizer steps"
        )
    for row, cell in by_row.items():
        tokens = int((-(-length_N[cell] // pad) * pad).sum())
        if tokens > max_token_len and not (
            len(cell) == 1 and settings.oversize == "alone"
        ):
            raise MismatchError(
                f"micro-batch {row} of the plan holds {tokens} tokens here, more than"
                f" max_token_len = {max_token_len}; plan with the smallest cap of all"
                " passes, and keep samples as they were planned"
            )
    return list(by_row.values())
