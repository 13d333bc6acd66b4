"""What a stack's own signature does not say, and the one call of the planner.

Axis letters: N samples, D DP ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rpopt.cost import CostModel
from rpopt.errors import InstanceError, MismatchError
from rpopt.planner import plan
from rpopt.plans import Placement, Plan
from rpopt.records import Int64Array
from rpopt.rules import Oversize, PackingRules, RowOrder
from rpopt.stop import MaxSweeps, StopCriterion
from rpopt.topology import Topology
from rpopt.window import Window

Cells = list[list[list[int]]]
"""Sample ids, indexed by DP rank and row; an empty list is a zero-weight dummy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """What the planner needs beyond a stack's own arguments.

    Parameters
    ----------
    topology
        The training job. FSDP-style stacks give `coupling="row"`.
    cost
        What attention and experts cost.
    stop
        When the annealing ends. Where every process plans for itself, the same plan
        is needed everywhere, so it must be a `MaxSweeps`.
    seed
        Seed of the plans.
    pad_multiple
        Each sample is padded to a multiple of this before the cap is applied.
    oversize
        What becomes of a sample above the cap; None for the stack's own policy.
    row_order
        Order of the micro-batches on every rank.
    current
        The placement now in force.
    on_plan
        Called with every plan: log J, or hand the placement to the expert registry.
    """

    topology: Topology
    cost: CostModel
    stop: StopCriterion
    seed: int = 0
    pad_multiple: int = 1
    oversize: Oversize | None = None
    row_order: RowOrder = "as_found"
    current: Placement | None = None
    on_plan: Callable[[Plan], None] | None = None

    def rules(
        self, token_cap: int, *, oversize: Oversize = "error", **more: Any
    ) -> PackingRules:
        """Return packing rules; `oversize` is the stack's own policy."""
        return PackingRules(
            token_cap=token_cap,
            pad_multiple=self.pad_multiple,
            oversize=self.oversize or oversize,
            row_order=self.row_order,
            **more,
        )

    def require_sizes(self, **sizes: int) -> None:
        """Raise a `MismatchError` where the stack runs with other parallel sizes."""
        for name, size in sizes.items():
            if getattr(self.topology, name) != size:
                raise MismatchError(
                    f"the stack runs with {name} = {size}, the settings say {name} ="
                    f" {getattr(self.topology, name)}; give the job's topology"
                )

    def require_every_sample(self, stack: str) -> None:
        """Raise where samples could be dropped that a stack expects back."""
        if self.oversize == "drop":
            raise InstanceError(
                f"oversize = 'drop' would lose samples that {stack} expects back; use"
                " 'error' or 'alone'"
            )

    def require_one_plan_everywhere(self) -> None:
        """Raise where a time limit could let processes find different plans."""
        if not isinstance(self.stop, MaxSweeps):
            raise InstanceError(
                f"stop = {self.stop!r} may depend on the clock, and every process plans"
                " for itself here; use MaxSweeps, which gives all of them one plan"
            )


def plan_cells(
    window: Window, rules: PackingRules, settings: StackSettings, *, min_rows: int = 1
) -> tuple[Plan, Cells]:
    """Plan a window and return the plan and its cells.

    Parameters
    ----------
    min_rows
        At least this many rows, rounded up to `rules.row_multiple`.

    Raises
    ------
    RpoptError
        When no plan exists, such as for fewer samples than cells.
    """
    raised = -(-min_rows // rules.row_multiple) * rules.row_multiple
    if raised > _volume_rows(window, rules, settings.topology):
        found = _plan(window, replace(rules, row_multiple=raised), settings)
        if found.layout.num_rows > raised:  # more rows are needed than were asked for
            found = _plan(window, rules, settings)
    else:
        found = _plan(window, rules, settings)
    if settings.on_plan is not None:
        settings.on_plan(found)
    return found, cells_of(found, window)


def _plan(window: Window, rules: PackingRules, settings: StackSettings) -> Plan:
    return plan(
        window,
        settings.topology,
        rules,
        settings.cost,
        stop=settings.stop,
        seed=settings.seed,
        current=settings.current if window.num_layers else None,
    )


def _volume_rows(window: Window, rules: PackingRules, topology: Topology) -> int:
    """Return a lower bound on the rows: the padded tokens spread evenly."""
    padded_N = -(-window.length_N // rules.pad_multiple) * rules.pad_multiple
    tokens = int(np.minimum(padded_N, rules.token_cap).sum())
    return -(-tokens // (rules.token_cap * topology.dp))


def cells_of(found: Plan, window: Window) -> Cells:
    """Return the sample ids of every cell, in increasing order."""
    num_rows, num_ranks = found.layout.num_rows, found.topology.dp
    row_N, rank_N = found.cell_of_sample(window)
    cells: Cells = [[[] for _ in range(num_rows)] for _ in range(num_ranks)]
    placed = zip(row_N.tolist(), rank_N.tolist(), strict=True)
    for sample, (row, rank) in enumerate(placed):
        if row >= 0:
            cells[rank][row].append(sample)
    return cells


def select(window: Window, samples: Sequence[int] | Int64Array) -> Window:
    """Return the window of some samples, in the order given."""
    ids = np.asarray(samples, dtype=np.int64)
    per_sample = ("length_N", "routed_tokens_N", "demand_NLE")
    fields = {name: getattr(window, name) for name in per_sample}
    fields |= {n: getattr(window, n) for n in ("prompt_group_N", "bundle_N")}
    chosen: dict[str, Any] = {
        name: None if v is None else v[ids] for name, v in fields.items()
    }
    if window.demand_NLE is None:
        chosen["routed_tokens_N"] = None
    return replace(window, **chosen)


def window_of(lengths: Any, window: Window | None = None) -> Window:
    """Return the window that a stack's list of lengths stands for.

    Parameters
    ----------
    lengths
        Tokens of each sample as the stack counts them.
    window
        The same samples with routes; None balances attention alone.

    Raises
    ------
    MismatchError
        When the window's lengths are not those of the stack.
    """
    if window is None:
        return Window(length_N=lengths)
    length_N = np.asarray(lengths, dtype=np.int64)
    if window.num_samples != length_N.size:
        raise MismatchError(
            f"the stack packs {length_N.size} samples, the window has"
            f" {window.num_samples}; give the window of the same samples"
        )
    differ = window.length_N != length_N
    if differ.any():
        i = int(differ.argmax())
        raise MismatchError(
            f"sample {i} has {length_N[i]} tokens in the stack and"
            f" {window.length_N[i]} in the window ({int(differ.sum())} samples"
            " differ); give the window of the same samples"
        )
    return window
