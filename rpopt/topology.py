"""The topology: which ranks meet in one expert all-to-all.

Axis letters: D data-parallel ranks, S shards.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from rpopt.errors import InstanceError
from rpopt.records import Int64Array, Record, freeze, int_array, positive_int

MAX_SIZE = 2**20
Coupling = Literal["step", "row"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology(Record):
    """Parallel sizes of one training job, and the shards that follow from them.

    Parameters
    ----------
    dp, ep
        Data-parallel and expert-parallel sizes.
    tp, cp, pp, etp
        Tensor-, context-, pipeline- and expert-tensor-parallel sizes.
    shard_of_rank_D
        The shard of each DP rank, for stacks whose rank order differs from
        Megatron-Core's; left out, consecutive ranks share a shard.
    coupling
        "step": shards meet only at the gradient reduction; "row": they meet in every
        row (FSDP / ZeRO-3 gathers parameters layer by layer).

    Raises
    ------
    InstanceError
        When sizes do not divide, or the explicit map is not balanced.

    Notes
    -----
    Rank order as in Megatron-Core: inside one pipeline stage the dense rank is
    tp + TP (cp + CP dp) and the expert rank is etp + ETP (ep + EP edp).
    """

    SCHEMA: ClassVar[str] = "rpopt.topology/1"

    dp: int
    ep: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    etp: int = 1
    shard_of_rank_D: Int64Array | None = None
    coupling: Coupling = "step"

    def __post_init__(self) -> None:
        """Check sizes and derive the rank to shard map."""
        for name in ("dp", "ep", "tp", "cp", "pp", "etp"):
            freeze(self, name, positive_int(getattr(self, name), name=name))
            if getattr(self, name) > MAX_SIZE:
                raise InstanceError(
                    f"{name} = {getattr(self, name)} exceeds {MAX_SIZE}; correct it"
                )
        if self.coupling not in ("step", "row"):
            raise InstanceError(f"coupling = {self.coupling!r}; use 'step' or 'row'")
        expert, dense = self.etp * self.ep, self.tp * self.cp
        if max(expert, dense) % min(expert, dense):
            raise InstanceError(
                f"etp x ep = {self.etp} x {self.ep} = {expert} and tp x cp ="
                f" {self.tp} x {self.cp} = {dense} do not divide each other; change"
                " one of them"
            )
        if self.dp % self.shard_size:
            raise InstanceError(
                f"dp = {self.dp} is not a multiple of the {self.shard_size} ranks that"
                f" share an EP group (etp x ep / (tp x cp) = {expert} / {dense})"
            )
        derived = np.arange(self.dp) // self.shard_size
        given = derived if self.shard_of_rank_D is None else self.shard_of_rank_D
        shard_D = int_array(given, name="shard_of_rank_D", ndim=1, minimum=0)
        self._check_map(shard_D)
        freeze(self, "shard_of_rank_D", shard_D)

    def _check_map(self, shard_D: Int64Array) -> None:
        if shard_D.size != self.dp:
            raise InstanceError(
                f"shard_of_rank_D has {shard_D.size} entries for dp = {self.dp}"
            )
        known_D = np.minimum(shard_D, self.num_shards)
        count_S = np.bincount(known_D, minlength=self.num_shards)
        if count_S.size != self.num_shards or np.any(count_S != self.shard_size):
            raise InstanceError(
                f"shard_of_rank_D gives shards of {count_S.tolist()} ranks;"
                f" {self.num_shards} shards of {self.shard_size} ranks are needed"
            )

    @property
    def shard_size(self) -> int:
        """DP ranks per shard, h; 1 when a DP rank spans several EP groups."""
        return max(1, self.etp * self.ep // (self.tp * self.cp))

    @property
    def num_slices(self) -> int:
        """EP groups that one DP rank spans, k; 1 when a shard holds whole ranks."""
        return max(1, self.tp * self.cp // (self.etp * self.ep))

    @property
    def num_shards(self) -> int:
        """S = dp / h."""
        return self.dp // self.shard_size

    @property
    def rank_shards_D(self) -> Int64Array:
        """The shard of each DP rank, always present."""
        assert self.shard_of_rank_D is not None
        return self.shard_of_rank_D

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of a cost under this topology must know."""
        if self.num_slices == 1:
            return ()
        return (
            f"one DP rank spans {self.num_slices} EP groups, each seeing about 1/"
            f"{self.num_slices} of its tokens: J is a lower estimate (on real routes a"
            " slice's peak is 2 to 14 % higher)",
        )

    def experts_per_rank(self, num_experts: int) -> int:
        """Return E / EP.

        Raises
        ------
        InstanceError
            When E is not a multiple of EP.
        """
        if num_experts % self.ep:
            raise InstanceError(
                f"{num_experts} experts cannot be spread equally over ep = {self.ep};"
                " choose an ep that divides them"
            )
        return num_experts // self.ep
