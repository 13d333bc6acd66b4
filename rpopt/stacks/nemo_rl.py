"""NeMo-RL: a sequence packer for `shard_by_batch_size`.

Construction and `pack` as in `nemo_rl.data.packing.algorithms.SequencePacker`. NeMo-RL
deals bin b to shard b mod shards, so the bins leave here row by row.
"""

from typing import Any

import numpy as np

from rpopt.errors import MismatchError
from rpopt.stacks.settings import StackSettings, plan_cells, select, window_of
from rpopt.window import Window


class RpoptPacker:
    """A packer whose bins are the cells of a plan.

    Parameters
    ----------
    bin_capacity
        Tokens that a bin may hold; lengths come in padded.
    collect_metrics
        Accepted for the signature; a plan says more, see `StackSettings.on_plan`.
    min_bin_count
        At least this many bins.
    bin_count_multiple
        The number of shards: bins are a multiple of it.
    settings
        What NeMo-RL does not know.
    """

    def __init__(
        self,
        bin_capacity: int,
        collect_metrics: bool = False,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
        *,
        settings: StackSettings,
    ) -> None:
        self.shards = bin_count_multiple or 1
        settings.require_sizes(dp=self.shards)
        settings.require_every_sample("NeMo-RL")
        self.settings = settings
        self.rules = settings.rules(bin_capacity)
        self.min_rows = -(-(min_bin_count or 1) // self.shards)
        self._window: Window | None = None
        self._used = 0

    def expect(self, window: Window) -> None:
        """Give the routes of the batch that is packed next, in its order.

        `shard_by_batch_size` packs a batch in pieces; each call of `pack` takes the
        next samples of this window.
        """
        self._window, self._used = window, 0

    def pack(self, sequence_lengths: list[int]) -> list[list[int]]:
        """Return the sample ids of each bin; none is empty.

        Raises
        ------
        RpoptError
            For a sequence above the capacity, or fewer sequences than bins.
        """
        window = window_of(sequence_lengths, self._next(sequence_lengths))
        found, cells = plan_cells(
            window, self.rules, self.settings, min_rows=self.min_rows
        )
        rows = range(found.layout.num_rows)
        return [cells[rank][row] for row in rows for rank in range(self.shards)]

    def _next(self, padded_lengths: list[int]) -> Window | None:
        """Return the routes of the next samples, with lengths as NeMo-RL pads them."""
        if self._window is None:
            return None
        stop = self._used + len(padded_lengths)
        if stop > self._window.num_samples:
            raise MismatchError(
                f"NeMo-RL packs samples {self._used} to {stop - 1} of a window with"
                f" {self._window.num_samples}; call expect with each new batch"
            )
        part = select(self._window, range(self._used, stop))
        self._used = stop
        return _padded(part, padded_lengths)


def _padded(window: Window, padded_lengths: list[int]) -> Window:
    """Return the window with the stack's padded lengths; routes stay as they are."""
    fields: dict[str, Any] = {
        name: getattr(window, name)
        for name in ("routed_tokens_N", "demand_NLE", "top_k", "prompt_group_N")
    }
    return Window(
        length_N=np.asarray(padded_lengths),
        bundle_N=window.bundle_N,
        layer_ids_L=window.layer_ids_L,
        origin=window.origin,
        **fields,
    )
