"""prime-rl: the micro-batches of every trainer rank.

Signature of `prime_rl.trainer.batch.prepare_batch`. The samples are prepared, joined,
padded and emptied of loss by prime-rl's own functions; rpopt decides which samples are
joined and where the result goes.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from rpopt.errors import InfeasibleError
from rpopt.stacks.settings import StackSettings, plan_cells, select, window_of
from rpopt.window import Window


def prepare_batch(
    rollouts: list[Any],
    seq_len: int,
    num_train_workers: int,
    bin_cost: Callable[[Sequence[int]], int],
    pad_to_multiple_of: int = 1,
    *,
    settings: StackSettings,
    window: Window | None = None,
) -> list[list[Any]]:
    """Return prime-rl's micro-batches, indexed by rank and row.

    Samples with images stay alone, samples with and without routes are not mixed, and
    every row holds one kind on all ranks: under FSDP ranks that run different modules
    wait for each other forever. Rows that samples cannot fill get copies without loss.

    Parameters
    ----------
    rollouts
        Training samples; those above `seq_len` are truncated by prime-rl.
    seq_len
        Tokens that a micro-batch may hold.
    num_train_workers
        DP ranks.
    bin_cost
        Only joins samples here; costs come from the settings.
    pad_to_multiple_of
        Each micro-batch is padded to a multiple of this.
    settings
        What prime-rl does not know; FSDP has `coupling="row"`.
    window
        The same samples with routes, lengths after truncation.

    Raises
    ------
    RpoptError
        When the sizes do not fit the settings, or there are no rollouts.
    """
    from prime_rl.trainer import batch as stack

    settings.require_sizes(dp=num_train_workers)
    if not rollouts:
        raise InfeasibleError("there are no rollouts; every rank needs a micro-batch")
    samples = [stack.prepare_sample(rollout, seq_len) for rollout in rollouts]
    whole = window_of([len(sample.input_ids) for sample in samples], window)
    # a micro-batch is padded as a whole, so it may hold whole multiples only
    cap = max(seq_len - seq_len % pad_to_multiple_of, pad_to_multiple_of)
    ranks: list[list[Any]] = [[] for _ in range(num_train_workers)]
    for kind, ids in _kinds(samples).items():
        rules = settings.rules(
            cap,
            oversize="alone",
            dummies=True,
            max_samples_per_cell=1 if kind[0] else None,
        )
        _, cells = plan_cells(select(whole, ids), rules, settings)
        joined = [
            [
                _join(stack, [samples[ids[i]] for i in cell], seq_len, bin_cost)
                for cell in rows
            ]
            for rows in cells
        ]
        spare = next(batch for rows in joined for batch in rows if batch is not None)
        for rank, rows in enumerate(joined):
            for batch in rows:
                whole_batch = _without_loss(stack, spare) if batch is None else batch
                ranks[rank].append(
                    stack.pad_micro_batch(whole_batch, pad_to_multiple_of)
                )
    return ranks


def _kinds(samples: Sequence[Any]) -> dict[tuple[bool, bool], list[int]]:
    """Return sample ids by (has images, has routes), images first."""
    kinds = np.array(
        [(s.mm_kwargs is not None, s.routed_experts is not None) for s in samples]
    )
    return {
        (images, routes): np.flatnonzero(
            (kinds == (images, routes)).all(axis=1)
        ).tolist()
        for images in (True, False)
        for routes in (True, False)
        if (kinds == (images, routes)).all(axis=1).any()
    }


def _join(
    stack: ModuleType,
    samples: list[Any],
    seq_len: int,
    bin_cost: Callable[[Sequence[int]], int],
) -> Any | None:
    """Join the samples of one cell; None for a cell without samples.

    They fit together, so prime-rl's first-fit makes one micro-batch of them.
    """
    if not samples:
        return None
    (joined,) = stack.packed_samples_into_micro_bs(samples, seq_len, 1, bin_cost)
    return joined


def _without_loss(stack: ModuleType, micro_batch: Any) -> Any:
    """Return a copy that trains nothing, made as this release of prime-rl does."""
    return getattr(stack, "_make_dummy_batch")(micro_batch)  # noqa: B009 (private)
