"""Deciding whether one cell less than the best packing is possible.

Where the relaxation rounds up to one less than the best packing known, arcs that no
better packing can use are removed in exact integers; what is left is usually small
enough for HiGHS to find a packing, or to say that there is none. That answer is its
claim, so a second model of another kind is asked too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rpopt.certificate import Bound
from rpopt.exact.arc_fixing import (
    MAX_TABLE,
    cells_of,
    fix_arcs,
    flow_model,
    full_network,
)
from rpopt.exact.column_generation import DualBound
from rpopt.exact.item_types import ItemTypes
from rpopt.exact.pattern_cover import cover_model, enumerate_patterns
from rpopt.highs import LinearModel, SolverResult, solve
from rpopt.records import Int64Array

_MAX_ARCS = 40_000
_MAX_PATTERNS = 30_000


@dataclass(slots=True)
class Verdict:
    """What became of the question whether `num_cells` cells suffice.

    Parameters
    ----------
    num_cells
        The question.
    cells
        A packing, if one was found: the types of the items in each cell.
    answers
        What each model said: its size, status, nodes, seconds, version.
    """

    num_cells: int
    cells: list[Int64Array] | None = None
    answers: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def infeasible_by(self) -> list[str]:
        """The models that say that there is no packing."""
        return [k for k, v in self.answers.items() if v["status"] == "infeasible"]

    def bound(self) -> Bound | None:
        """Return the solver's bound, if a model excludes a packing and none has one."""
        if self.cells is not None or not self.infeasible_by:
            return None
        return Bound(
            name="arc_fixing",
            kind="solver",
            value=self.num_cells + 1,
            evidence={
                "claim": f"no packing into {self.num_cells} cells",
                "agreed": sorted(self.infeasible_by),
                "models": self.answers,
            },
        )


def decide(
    types: ItemTypes, num_cells: int, bounds: Sequence[DualBound], deadline_s: float
) -> Verdict:
    """Ask both models whether all items fit into `num_cells` cells.

    Parameters
    ----------
    types
        The item types.
    num_cells
        The number of cells in question.
    bounds
        Dual bounds of at most `num_cells` cells, the best one first.
    deadline_s
        When to stop, on the clock of `time.monotonic`; may raise an `OutOfTimeError`.
    """
    verdict = Verdict(num_cells)
    if types.num_types * (types.capacity + 1) > MAX_TABLE:
        return verdict
    for ask in (_ask_cover, _ask_flow):
        if verdict.cells is None and time.monotonic() < deadline_s:
            ask(types, bounds, verdict, deadline_s)
    return verdict


def _ask_flow(
    types: ItemTypes, bounds: Sequence[DualBound], verdict: Verdict, deadline_s: float
) -> None:
    network = full_network(types, verdict.num_cells)
    network = fix_arcs(network, bounds, deadline_s=deadline_s)
    if network.num_arcs > _MAX_ARCS:
        return
    if not network.arc_KW.any(axis=1).all():
        verdict.answers["flow"] = _nothing_left(network.num_arcs)
        return
    result = _ask(verdict, "flow", flow_model(network), deadline_s)
    if result.x is not None:
        _accept(types, verdict, cells_of(network, result.x))


def _ask_cover(
    types: ItemTypes, bounds: Sequence[DualBound], verdict: Verdict, deadline_s: float
) -> None:
    pattern_QK = enumerate_patterns(
        types, bounds, verdict.num_cells, _MAX_PATTERNS, deadline_s=deadline_s
    )
    if pattern_QK is None:
        return
    if not pattern_QK.any(axis=0).all():
        verdict.answers["cover"] = _nothing_left(len(pattern_QK))
        return
    model = cover_model(types, pattern_QK, verdict.num_cells)
    result = _ask(verdict, "cover", model, deadline_s)
    if result.x is not None:
        uses = result.x.round().astype(int).tolist()
        cells = [
            np.repeat(np.arange(types.num_types), pattern_K)
            for pattern_K, use in zip(pattern_QK, uses, strict=True)
            for _ in range(use)
        ]
        _accept(types, verdict, cells)


def _nothing_left(num_columns: int) -> dict[str, object]:
    """Return the answer where fixing left nothing for some item: no solver asked."""
    return {"columns": num_columns, "status": "infeasible", "note": "by fixing alone"}


def _accept(types: ItemTypes, verdict: Verdict, cells: list[Int64Array]) -> None:
    """Take a packing over if its cells hold no more than they may."""
    if len(cells) <= verdict.num_cells and all(types.is_cell(cell) for cell in cells):
        verdict.cells = cells


def _ask(
    verdict: Verdict, name: str, model: LinearModel, deadline_s: float
) -> SolverResult:
    result = solve(model, time_limit_s=max(0.0, deadline_s - time.monotonic()))
    verdict.answers[name] = {
        "columns": model.num_col,
        "rows": model.num_row,
        "status": str(result.termination),
        "nodes": result.num_nodes,
        "runtime_s": round(result.runtime_s, 3),
        "model_digest": result.model_digest,
        "versions": [list(v) for v in result.versions],
    }
    return result
