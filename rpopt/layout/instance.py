"""The layout problem: an instance and the checker; solutions are `rpopt.plans.Layout`.

Axis letters: I items, C attention classes, L MoE layers, P EP ranks, D DP ranks,
R rows, S shards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import numpy.typing as npt

from rpopt.checks import Violation
from rpopt.cost import ScaledCosts
from rpopt.errors import InstanceError
from rpopt.items import Items
from rpopt.plans import Layout
from rpopt.records import Int64Array, Record, freeze, int_array, positive_int
from rpopt.rules import PackingRules
from rpopt.topology import Coupling, Topology

MAX_TOTAL_TICKS = 2**62
"""All costs of an instance sum to less, so that no sum of costs overflows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutInstance(Record):
    """Lay items out over rows and DP ranks so that the slowest shard is fastest.

    Parameters
    ----------
    weight_I
        Tokens that each item occupies, in [1, token_cap].
    num_samples_I
        Samples of each item.
    attention_ticks_IC
        Attention cost of each item in each class.
    load_ILP
        Token copies that each item sends to each EP rank in each layer.
    layer_weight_ticks_L
        Ticks per token copy at the peak EP rank.
    offset_ticks, unit_ticks
        J = (offset + the slowest shard's ticks) / unit.
    num_rows, token_cap, max_samples_per_cell
        Rows per DP rank and limits of a cell.
    shard_of_rank_D
        Shard of each DP rank; all shards have equally many ranks.
    coupling
        "step": J is the slowest shard's sum over rows; "row": the sum over rows of the
        slowest shard.
    """

    SCHEMA: ClassVar[str] = "rpopt.layout/1"

    weight_I: Int64Array
    num_samples_I: Int64Array
    attention_ticks_IC: Int64Array
    load_ILP: npt.NDArray[np.int32]
    layer_weight_ticks_L: Int64Array
    offset_ticks: int
    unit_ticks: int
    num_rows: int
    token_cap: int
    shard_of_rank_D: Int64Array
    max_samples_per_cell: int | None = None
    coupling: Coupling = "step"

    def __post_init__(self) -> None:
        """Check shapes and ranges."""
        for name, ndim, dtype in (
            ("weight_I", 1, np.int64),
            ("num_samples_I", 1, np.int64),
            ("attention_ticks_IC", 2, np.int64),
            ("load_ILP", 3, np.int32),
            ("layer_weight_ticks_L", 1, np.int64),
            ("shard_of_rank_D", 1, np.int64),
        ):
            array = int_array(
                getattr(self, name), name=name, ndim=ndim, dtype=dtype, minimum=0
            )
            freeze(self, name, array)
        for name in ("num_rows", "token_cap", "unit_ticks"):
            freeze(self, name, positive_int(getattr(self, name), name=name))
        offset = positive_int(self.offset_ticks, name="offset_ticks", minimum=0)
        freeze(self, "offset_ticks", offset)
        if self.max_samples_per_cell is not None:
            limit = positive_int(self.max_samples_per_cell, name="max_samples_per_cell")
            freeze(self, "max_samples_per_cell", limit)
        if self.coupling not in get_args(Coupling):
            raise InstanceError(f"coupling = {self.coupling!r}; use 'step' or 'row'")
        self._check_shapes()
        self._check_cells()
        self._check_totals()

    def _check_shapes(self) -> None:
        counts = {
            name: getattr(self, name).shape[0]
            for name in ("weight_I", "num_samples_I", "attention_ticks_IC", "load_ILP")
        }
        if len(set(counts.values())) != 1:
            raise InstanceError(f"arrays disagree on the number of items: {counts}")
        if self.layer_weight_ticks_L.size != self.load_ILP.shape[1]:
            raise InstanceError(
                f"{self.layer_weight_ticks_L.size} layer weights for"
                f" {self.load_ILP.shape[1]} layers"
            )
        if self.attention_ticks_IC.shape[1] == 0 or self.load_ILP.shape[2] == 0:
            raise InstanceError(
                f"{self.attention_ticks_IC.shape[1]} attention classes and"
                f" {self.load_ILP.shape[2]} EP ranks; at least one of each is needed"
            )

    def _check_cells(self) -> None:
        shard_D = self.shard_of_rank_D
        if shard_D.size == 0 or shard_D.max() >= shard_D.size:
            raise InstanceError(
                f"shard_of_rank_D = {shard_D.tolist()}; give one shard per DP rank,"
                " numbered from 0"
            )
        count_S = np.bincount(shard_D)
        if np.any(count_S != count_S[0]):
            raise InstanceError(
                f"shards of {count_S.tolist()} ranks; they must be equal"
            )
        if self.num_items < self.num_cells:
            raise InstanceError(
                f"{self.num_items} items cannot fill {self.num_cells} cells without an"
                " empty one; add dummies or use fewer rows"
            )
        if self.weight_I.min() < 1 or self.weight_I.max() > self.token_cap:
            raise InstanceError(
                f"item weights lie in [{self.weight_I.min()}, {self.weight_I.max()}];"
                f" they must lie in [1, token_cap = {self.token_cap}]"
            )

    def _check_totals(self) -> None:
        """Check the sum of all costs in floats, which are close enough."""
        copies_L = self.load_ILP.sum(axis=(0, 2), dtype=np.float64)
        total = (
            float(self.attention_ticks_IC.sum(dtype=np.float64))
            + float(copies_L @ self.layer_weight_ticks_L)
            + self.offset_ticks
        )
        if total >= MAX_TOTAL_TICKS:
            raise InstanceError(
                f"the costs sum to {total:.4g} ticks; they must sum to less than"
                f" {MAX_TOTAL_TICKS}: use a smaller unit"
            )

    @classmethod
    def from_parts(
        cls,
        *,
        items: Items,
        rules: PackingRules,
        topology: Topology,
        scaled: ScaledCosts,
        load_ILP: npt.NDArray[np.int32],
        num_rows: int,
    ) -> "LayoutInstance":
        """Return the layout instance of a window's items under a placement."""
        return cls(
            weight_I=items.weight_tokens_I,
            num_samples_I=items.num_samples_I,
            attention_ticks_IC=scaled.attention_ticks_IC,
            load_ILP=load_ILP,
            layer_weight_ticks_L=scaled.layer_weight_ticks_L,
            offset_ticks=scaled.offset_ticks,
            unit_ticks=scaled.unit_ticks,
            num_rows=num_rows,
            token_cap=rules.token_cap,
            shard_of_rank_D=topology.rank_shards_D,
            max_samples_per_cell=rules.max_samples_per_cell,
            coupling=topology.coupling,
        )

    @property
    def num_items(self) -> int:
        """I."""
        return int(self.weight_I.size)

    @property
    def num_ranks(self) -> int:
        """D."""
        return int(self.shard_of_rank_D.size)

    @property
    def num_cells(self) -> int:
        """R x D."""
        return self.num_rows * self.num_ranks

    @property
    def num_shards(self) -> int:
        """S."""
        return int(self.shard_of_rank_D.max()) + 1

    @property
    def shard_size(self) -> int:
        """Ranks per shard, h = D / S."""
        return self.num_ranks // self.num_shards

    @property
    def num_groups(self) -> int:
        """G = R x S."""
        return self.num_rows * self.num_shards


def check(instance: LayoutInstance, layout: Layout) -> list[Violation]:
    """Return every broken constraint; an empty list means feasible.

    Written apart from the evaluator, with plain sums per cell, so that one mistake
    cannot hide in both.
    """
    shape = _shape_violations(instance, layout)
    if shape:
        return shape
    tokens: dict[tuple[int, int], int] = {}
    samples: dict[tuple[int, int], int] = {}
    for i, (row, rank) in enumerate(
        zip(layout.row_I.tolist(), layout.rank_I.tolist(), strict=True)
    ):
        cell = (row, rank)
        tokens[cell] = tokens.get(cell, 0) + int(instance.weight_I[i])
        samples[cell] = samples.get(cell, 0) + int(instance.num_samples_I[i])
    return list(_cell_violations(instance, tokens, samples))


def _shape_violations(instance: LayoutInstance, layout: Layout) -> list[Violation]:
    found = []
    if layout.row_I.size != instance.num_items:
        message = f"{layout.row_I.size} items laid out, {instance.num_items} exist"
        found.append(Violation(constraint="every item once", message=message))
    if layout.num_rows != instance.num_rows:
        message = f"{layout.num_rows} rows, not {instance.num_rows}"
        found.append(Violation(constraint="row count", message=message))
    for name, value_I, limit in (
        ("row", layout.row_I, instance.num_rows),
        ("rank", layout.rank_I, instance.num_ranks),
    ):
        for i in np.flatnonzero((value_I < 0) | (value_I >= limit)):
            message = f"item {i} has {name} {value_I[i]}, allowed 0 to {limit - 1}"
            found.append(Violation(constraint=f"{name} range", message=message))
    return found


def _cell_violations(
    instance: LayoutInstance,
    tokens: dict[tuple[int, int], int],
    samples: dict[tuple[int, int], int],
) -> Iterator[Violation]:
    limit = instance.max_samples_per_cell
    for row in range(instance.num_rows):
        for rank in range(instance.num_ranks):
            cell, name = (row, rank), f"cell (row {row}, rank {rank})"
            if cell not in tokens:
                yield Violation(constraint="empty cell", message=f"{name} is empty")
                continue
            if tokens[cell] > instance.token_cap:
                message = (
                    f"{name} holds {tokens[cell]} tokens, cap {instance.token_cap}"
                )
                yield Violation(constraint="token cap", message=message)
            if limit is not None and samples[cell] > limit:
                message = f"{name} holds {samples[cell]} samples, at most {limit}"
                yield Violation(constraint="samples per cell", message=message)
