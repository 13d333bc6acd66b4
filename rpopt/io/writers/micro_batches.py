"""Micro-batches of a plan: which samples, in which order, on which DP rank.

The order is rank by rank, row by row, with increasing sample ids in a cell.
`position_N` is its inverse: outputs gathered in this order, taken at `position_N`, are
those of sample 0, 1, 2 and so on; -1 stands for a dropped sample. A cell without
samples is one that a zero-weight dummy fills.

======  ==================  =======================================================
suffix  key                 value
======  ==================  =======================================================
json    micro_batches       sample ids as micro_batches[rank][row]
npz     sample_ids          the whole order, int64 [samples kept]
npz     count_DR            samples in each cell, int64 [DP ranks, rows]
both    position_N          place of each sample in the order, int64 [N]
both    schema, window,     version of this format, and the digests of window and
        plan                plan; in an .npz file, within the JSON text `header`
======  ==================  =======================================================

Axis letters: N samples, D DP ranks, R rows.
"""

import numpy as np

from rpopt.io.access import AnyPath, atomic_writer
from rpopt.io.jsonfile import write_json_text
from rpopt.io.npz import write_npz_members
from rpopt.io.writers.expert_maps import require_suffix
from rpopt.plans import Plan
from rpopt.records import Int64Array, canonical_json
from rpopt.window import Window

SCHEMA = "rpopt.micro-batches/1"


def write_order(path: AnyPath, plan: Plan, window: Window) -> None:
    """Write the micro-batches of a plan.

    Parameters
    ----------
    path
        File whose name ends in `.json` or `.npz`.
    plan, window
        The plan, and the window that it is for.

    Raises
    ------
    InstanceError
        When the name ends otherwise.
    MismatchError
        When the plan is for another window.
    FileFormatError
        When the file cannot be written.
    """
    suffix = require_suffix(path, ".json", ".npz")
    sample_ids, count_DR = _order(plan, window)
    position_N = np.full(window.num_samples, -1)
    position_N[sample_ids] = np.arange(sample_ids.size)
    header = {"schema": SCHEMA, "window": window.digest, "plan": plan.digest}
    if suffix == ".npz":
        arrays = {
            "sample_ids": sample_ids,
            "count_DR": count_DR,
            "position_N": position_N,
        }
        with atomic_writer(path) as file:
            write_npz_members(file, canonical_json(header), arrays)
    else:
        ranks = _nested(sample_ids, count_DR)
        content = {"micro_batches": ranks, "position_N": position_N.tolist()}
        write_json_text(path, {**header, **content})


def _order(plan: Plan, window: Window) -> tuple[Int64Array, Int64Array]:
    """Return the kept samples rank by rank, row by row, and the counts of the cells."""
    row_N, rank_N = plan.cell_of_sample(window)
    shape = (plan.topology.dp, plan.layout.num_rows)
    kept = np.flatnonzero(rank_N >= 0)
    cell_of_kept = rank_N[kept] * shape[1] + row_N[kept]
    counts = np.bincount(cell_of_kept, minlength=shape[0] * shape[1])
    return kept[np.argsort(cell_of_kept, kind="stable")], counts.reshape(shape)


def _nested(sample_ids: Int64Array, count_DR: Int64Array) -> list[list[list[int]]]:
    """Return the same as micro_batches[rank][row]."""
    cells = iter(np.split(sample_ids, np.cumsum(count_DR)[:-1]))
    return [[next(cells).tolist() for _ in count_R] for count_R in count_DR]
