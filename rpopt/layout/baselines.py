"""Baseline layouts: what training stacks do today, all under the cap.

Each baseline packs the items into R x dp cells. Most of them leave to `arrange` which
cells meet, as they balance cells and no more; those that also say it keep their order
(`deal`). A baseline that finds no packing of that many cells under the cap is left out.

Axis letters: I items.
"""

from collections.abc import Callable

from rpopt.differencing import largest_differencing
from rpopt.layout.arrange import arrange, deal, from_packing, split_cells
from rpopt.layout.cells import (
    first_fit_decreasing,
    greedy,
    next_fit,
    repair,
)
from rpopt.layout.instance import LayoutInstance
from rpopt.plans import Layout
from rpopt.records import Int64Array

SPLIT = "fewest cells, split"
Baseline = Callable[[LayoutInstance], Layout | None]


def baselines(instance: LayoutInstance, packed_I: Int64Array) -> dict[str, Layout]:
    """Return the baseline layouts by name.

    Parameters
    ----------
    instance
        The layout instance.
    packed_I
        Cell of each packed item in a feasible packing of at most R x dp cells, such as
        the witness of the row certificate; see `from_packing`. It makes sure that there
        is at least one baseline.
    """
    found = {name: method(instance) for name, method in METHODS.items()}
    found[SPLIT] = from_packing(instance, packed_I)
    return {name: layout for name, layout in found.items() if layout is not None}


def token_lpt(instance: LayoutInstance) -> Layout | None:
    """Longest processing time first on tokens (AReaL's balanced greedy)."""
    return _arranged(instance, greedy(instance, instance.weight_I))


def attention_lpt(instance: LayoutInstance) -> Layout | None:
    """Longest processing time first on attention ticks."""
    return _arranged(instance, greedy(instance, _attention(instance)))


def equal_count_lpt(instance: LayoutInstance) -> Layout | None:
    """Longest processing time first on tokens, equal sample counts (UniRL)."""
    most = -(-int(instance.num_samples_I.sum()) // instance.num_cells)
    return _arranged(instance, greedy(instance, instance.weight_I, max_samples=most))


def token_karmarkar_karp(instance: LayoutInstance) -> Layout | None:
    """Largest differencing on tokens (verl, slime), the cap repaired."""
    cell_I = largest_differencing(instance.weight_I, instance.num_cells)
    return _arranged(instance, repair(instance, cell_I))


def attention_karmarkar_karp(instance: LayoutInstance) -> Layout | None:
    """Largest differencing on attention ticks (slime by FLOPs), the cap repaired."""
    cell_I = largest_differencing(_attention(instance), instance.num_cells)
    return _arranged(instance, repair(instance, cell_I))


def dealt_first_fit_decreasing(instance: LayoutInstance) -> Layout | None:
    """First-fit decreasing, cells dealt to the ranks in turn (NeMo-RL, AReaL)."""
    return _dealt(instance, first_fit_decreasing(instance))


def dealt_next_fit(instance: LayoutInstance) -> Layout | None:
    """Next-fit in input order, cells dealt to the ranks in turn (Megatron-Core)."""
    return _dealt(instance, next_fit(instance))


METHODS: dict[str, Baseline] = {
    "LPT, tokens": token_lpt,
    "LPT, attention": attention_lpt,
    "LPT, equal count": equal_count_lpt,
    "Karmarkar-Karp, tokens": token_karmarkar_karp,
    "Karmarkar-Karp, attention": attention_karmarkar_karp,
    "first-fit decreasing, dealt": dealt_first_fit_decreasing,
    "next-fit, dealt": dealt_next_fit,
}


def _arranged(instance: LayoutInstance, cell_I: Int64Array | None) -> Layout | None:
    if cell_I is None or len(set(cell_I.tolist())) < instance.num_cells:
        return None
    return arrange(instance, cell_I)


def _dealt(instance: LayoutInstance, cell_I: Int64Array | None) -> Layout | None:
    if cell_I is None:
        return None
    return deal(instance, split_cells(instance, cell_I, instance.weight_I))


def _attention(instance: LayoutInstance) -> Int64Array:
    return instance.attention_ticks_IC.sum(axis=1)
