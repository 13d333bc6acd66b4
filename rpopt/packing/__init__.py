"""Packing: the fewest cells under the token cap, and from them the number of rows."""

from rpopt.packing.cells import split_to
from rpopt.packing.heuristics import pack
from rpopt.packing.instance import (
    PackingCost,
    PackingInstance,
    PackingSolution,
    check,
    evaluate,
)
from rpopt.packing.rows import certify_rows, recheck

__all__ = [
    "PackingCost",
    "PackingInstance",
    "PackingSolution",
    "certify_rows",
    "check",
    "evaluate",
    "pack",
    "recheck",
    "split_to",
]
