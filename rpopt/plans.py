"""Solutions: placements, layouts, and the plan that holds them.

Axis letters: N samples, I items, L MoE layers, E experts (also slots), D DP ranks.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rpopt.certificate import Bound, Certificate
from rpopt.cost import CostModel
from rpopt.errors import InstanceError, MismatchError
from rpopt.items import DROPPED, build_items
from rpopt.records import Int64Array, Record, freeze, int_array, positive_int
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement(Record):
    """A permutation of the experts over the slots, per MoE layer.

    Parameters
    ----------
    slot_LE
        Slot of each logical expert; every row is a permutation of 0 to E - 1.
    num_ep_ranks
        P; the EP rank of a slot is slot // (E / P).
    """

    SCHEMA: ClassVar[str] = "rpopt.placement-solution/1"

    slot_LE: Int64Array
    num_ep_ranks: int

    def __post_init__(self) -> None:
        """Check that every row is a permutation."""
        slot_LE = int_array(self.slot_LE, name="slot_LE", ndim=2)
        ranks = positive_int(self.num_ep_ranks, name="num_ep_ranks")
        num_experts = slot_LE.shape[1]
        if num_experts == 0 or num_experts % ranks:
            raise InstanceError(
                f"{num_experts} experts cannot be spread equally over {ranks} EP ranks"
            )
        wrong = (np.sort(slot_LE, axis=1) != np.arange(num_experts)).any(axis=1)
        if wrong.any():
            layer = int(wrong.argmax())
            raise InstanceError(
                f"slots of layer {layer} are no permutation of 0 to {num_experts - 1}"
                f" ({int(wrong.sum())} layers are not)"
            )
        freeze(self, "slot_LE", slot_LE)
        freeze(self, "num_ep_ranks", ranks)

    @classmethod
    def identity(
        cls, num_layers: int, num_experts: int, num_ep_ranks: int
    ) -> "Placement":
        """Return the placement in which every expert sits in its own slot."""
        slot_LE = np.tile(np.arange(num_experts), (num_layers, 1))
        return cls(slot_LE=slot_LE, num_ep_ranks=num_ep_ranks)

    @classmethod
    def from_ranks(
        cls, rank_LE: Int64Array, num_ep_ranks: int, current: "Placement | None" = None
    ) -> "Placement":
        """Return a placement with the given EP rank of each expert, int64 [L, E].

        Experts that stay on the rank they have in `current` (identity when None) keep
        their slot; arrivals take the freed slots in increasing order.
        """
        rank_LE = np.asarray(rank_LE)
        num_layers, num_experts = rank_LE.shape
        if current is None:
            current = cls.identity(num_layers, num_experts, num_ep_ranks)
        per_rank = num_experts // num_ep_ranks
        slot_LE = np.where(current.rank_LE == rank_LE, current.slot_LE, -1)
        for layer in range(num_layers):
            free = np.setdiff1d(np.arange(num_experts), slot_LE[layer])
            arriving = np.flatnonzero(slot_LE[layer] < 0)
            arriving = arriving[np.argsort(rank_LE[layer, arriving], kind="stable")]
            if np.any(free // per_rank != rank_LE[layer, arriving]):
                raise InstanceError(
                    f"layer {layer} does not put {per_rank} experts on every EP rank"
                )
            slot_LE[layer, arriving] = free
        return cls(slot_LE=slot_LE, num_ep_ranks=num_ep_ranks)

    @property
    def rank_LE(self) -> Int64Array:
        """EP rank of each logical expert."""
        return self.slot_LE // (self.slot_LE.shape[1] // self.num_ep_ranks)

    @property
    def expert_of_slot_LE(self) -> Int64Array:
        """Logical expert in each slot: the inverse permutation of every row."""
        return np.argsort(self.slot_LE, axis=1)

    def num_moved(self, other: "Placement") -> Int64Array:
        """Return how many experts sit on another EP rank than in `other`, [L]."""
        ours = (*self.slot_LE.shape, self.num_ep_ranks)
        theirs = (*other.slot_LE.shape, other.num_ep_ranks)
        if ours != theirs:
            raise InstanceError(
                f"placements of {ours} and {theirs} (layers, experts, EP ranks) cannot"
                " be compared"
            )
        return (self.rank_LE != other.rank_LE).sum(axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout(Record):
    """The cell of every item.

    Parameters
    ----------
    row_I, rank_I
        Row and DP rank of each item.
    num_rows
        R; every rank has this many rows.
    """

    SCHEMA: ClassVar[str] = "rpopt.layout-solution/1"

    row_I: Int64Array
    rank_I: Int64Array
    num_rows: int

    def __post_init__(self) -> None:
        """Store arrays read-only."""
        freeze(self, "row_I", int_array(self.row_I, name="row_I", ndim=1))
        freeze(self, "rank_I", int_array(self.rank_I, name="rank_I", ndim=1))
        freeze(self, "num_rows", positive_int(self.num_rows, name="num_rows"))
        if self.row_I.size != self.rank_I.size:
            raise InstanceError(
                f"row_I has {self.row_I.size} entries, rank_I {self.rank_I.size}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(Record):
    """A checked plan of one window: what to place, pack and lay out, and why.

    Parameters
    ----------
    window_digest
        Digest of the window that the plan is for.
    topology, rules, cost
        The data that the plan was made from.
    placement
        Expert placement; None for a window with lengths only.
    layout
        Cell of every item: the samples in order (bundles merged at their first
        sample, dropped samples left out), then the dummies.
    rows
        Certificate of the number of rows.
    placement_bounds
        One lower bound on the peak load per MoE layer, in token copies.
    layout_bounds
        Lower bounds on J for this placement and number of rows, in ticks.
    j_ticks, unit_ticks
        J = j_ticks / unit_ticks, exact.
    method, seed, termination
        How the layout was found and why the search ended.
    versions
        Pairs (package, version) that took part.
    """

    SCHEMA: ClassVar[str] = "rpopt.plan/1"

    window_digest: str
    topology: Topology
    rules: PackingRules
    cost: CostModel
    placement: Placement | None
    layout: Layout
    rows: Certificate
    placement_bounds: tuple[Bound, ...]
    layout_bounds: tuple[Bound, ...]
    j_ticks: int
    unit_ticks: int
    method: str
    seed: int
    termination: str
    versions: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check that J is a positive number."""
        for name in ("j_ticks", "unit_ticks"):
            freeze(self, name, positive_int(getattr(self, name), name=name))

    @property
    def j(self) -> float:
        """J as a number; 1 is perfect balance."""
        return self.j_ticks / self.unit_ticks

    def require_window(self, window: Window) -> None:
        """Raise a `MismatchError` when the plan is for another window."""
        if window.digest != self.window_digest:
            raise MismatchError(
                f"the plan is for window {self.window_digest[:12]}…, this one is"
                f" {window.digest[:12]}…; give the window that was planned"
            )

    def cell_of_sample(self, window: Window) -> tuple[Int64Array, Int64Array]:
        """Return row and rank of every sample, int64 [N] each; -1 where dropped.

        Raises
        ------
        MismatchError
            When the plan is for another window.
        """
        self.require_window(window)
        item_N = build_items(window, self.rules).item_of_sample_N
        dropped_N = item_N == DROPPED
        row_N = np.where(dropped_N, -1, self.layout.row_I[item_N])
        return row_N, np.where(dropped_N, -1, self.layout.rank_I[item_N])

    def micro_batches(self, window: Window, *, rank: int) -> list[list[int]]:
        """Return the sample ids of each row on one DP rank, in increasing order.

        An empty list is a cell that only a zero-weight dummy fills.

        Raises
        ------
        InstanceError
            When there is no such rank.
        MismatchError
            When the plan is for another window.
        """
        if not 0 <= rank < self.topology.dp:
            raise InstanceError(
                f"there is no DP rank {rank}; the plan has ranks 0 to"
                f" {self.topology.dp - 1}"
            )
        row_N, rank_N = self.cell_of_sample(window)
        return [
            np.flatnonzero((row_N == row) & (rank_N == rank)).tolist()
            for row in range(self.layout.num_rows)
        ]

    @property
    def lower_ticks(self) -> int:
        """The strongest lower bound on J, in ticks."""
        return max((b.value for b in self.layout_bounds), default=0)
