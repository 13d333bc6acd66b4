"""Packing rules: what a row may hold, and what happens to samples that do not fit."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from rpopt.errors import InstanceError
from rpopt.records import Record, freeze, positive_int

MAX_TOKEN_CAP = 2**40
Oversize = Literal["error", "alone", "drop"]
MissingRoutes = Literal["proportional", "uniform", "ignore"]
RowOrder = Literal["as_found", "largest_first", "small_at_ends"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingRules(Record):
    """The hard constraints of packing and the policies around them.

    Parameters
    ----------
    token_cap
        Padded tokens that one cell may hold.
    pad_multiple
        A sample's padded length is its length rounded up to this multiple.
    row_multiple
        The number of rows is a multiple of this (virtual pipeline).
    max_samples_per_cell
        At most this many samples in a cell; None for no limit.
    oversize
        A sample above the cap is an "error", sits "alone" in its cell, or is "drop"ped.
    dummies
        Fill up with zero-weight dummies when there are fewer samples than cells;
        otherwise that is an error.
    missing_routes
        How tokens without a route, and padding, are dispatched: "proportional" to the
        sample's own histogram (else its prompt group's, else the window's), "uniform"
        over the experts, or "ignore".
    row_order
        Order of the rows in the plan; the cost does not depend on it.
    """

    SCHEMA: ClassVar[str] = "rpopt.rules/1"

    token_cap: int
    pad_multiple: int = 1
    row_multiple: int = 1
    max_samples_per_cell: int | None = None
    oversize: Oversize = "error"
    dummies: bool = False
    missing_routes: MissingRoutes = "proportional"
    row_order: RowOrder = "as_found"

    def __post_init__(self) -> None:
        """Check every rule."""
        for name in ("token_cap", "pad_multiple", "row_multiple"):
            freeze(self, name, positive_int(getattr(self, name), name=name))
        for name, most in (("token_cap", MAX_TOKEN_CAP), ("row_multiple", 2**20)):
            if getattr(self, name) > most:
                raise InstanceError(
                    f"{name} = {getattr(self, name)} exceeds {most}; lower it"
                )
        if not isinstance(self.dummies, bool):
            raise InstanceError(f"dummies = {self.dummies!r}; use True or False")
        if self.max_samples_per_cell is not None:
            limit = positive_int(self.max_samples_per_cell, name="max_samples_per_cell")
            freeze(self, "max_samples_per_cell", limit)
        if self.pad_multiple > self.token_cap:
            raise InstanceError(
                f"pad_multiple = {self.pad_multiple} exceeds token_cap ="
                f" {self.token_cap}; not even one sample fits"
            )
        choices = {"oversize": Oversize, "missing_routes": MissingRoutes}
        choices["row_order"] = RowOrder
        for name, kind in choices.items():
            if getattr(self, name) not in get_args(kind):
                raise InstanceError(
                    f"{name} = {getattr(self, name)!r}; use one of {get_args(kind)}"
                )
