"""Megatron-Core: a packing scheduler.

`packing_scheduler` subclasses the installed `DpBalancedScheduler`, whose `run` gathers
lengths, calls `get_groups_and_subsamples` on every pipeline stage and moves the
samples. Every process plans for itself there, so the settings must stop after a number
of sweeps.
"""

from rpopt.stacks.settings import (
    Cells,
    StackSettings,
    plan_cells,
    window_of,
)
from rpopt.window import Window


def packing_scheduler(base: type, settings: StackSettings) -> type:
    """Return a subclass of a Megatron-Core packing scheduler that plans.

    Parameters
    ----------
    base
        `DpBalancedScheduler` of `megatron.core.datasets.data_schedule`.
    settings
        What Megatron-Core does not know. Give the class to its `scheduler_map`.

    Raises
    ------
    InstanceError
        For settings under which processes could find different plans, or samples
        could be dropped.
    """
    settings.require_one_plan_everywhere()
    settings.require_every_sample("Megatron-Core")

    class RpoptPackingScheduler(base):  # type: ignore[misc]
        """Groups of packed samples from a plan."""

        window: Window | None = None
        """The next global batch with routes, in the order of its ids."""

        def get_groups_and_subsamples(
            self, sample_id_seqlens: list[tuple[int, int]]
        ) -> Cells:
            """Return sample ids, indexed by micro-batch and DP x CP rank."""
            settings.require_sizes(dp=self.dp_size, cp=self.cp_size)
            rules = settings.rules(
                self.max_seqlen_per_dp_cp_rank * self.cp_size,
                row_multiple=self.microbatch_group_size_per_vp_stage or 1,
                max_samples_per_cell=getattr(self, "max_num_seqs", None),  # newer ones
            )
            lengths = [length for _, length in sample_id_seqlens]
            window = window_of(lengths, self.window)
            found, cells = plan_cells(window, rules, settings)
            ranks = range(self.dp_size * self.cp_size)
            return [
                [list(cells[rank // self.cp_size][row]) for rank in ranks]
                for row in range(found.layout.num_rows)
            ]

    return RpoptPackingScheduler
