"""Items: what packing and layout handle, made from the samples of a window.

Samples of one bundle are merged into one item, samples (or bundles) above the cap are
refused, isolated or dropped, and zero-weight dummies may be added.

Axis letters: N samples, I items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rpopt.errors import InfeasibleError
from rpopt.records import Int64Array, Record, freeze, int_array
from rpopt.rules import PackingRules
from rpopt.window import Window

DROPPED = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Items(Record):
    """Items of a window under packing rules.

    Parameters
    ----------
    item_of_sample_N
        The item of each sample, or `DROPPED`.
    padded_tokens_I
        Sum of the padded lengths of an item's samples.
    weight_tokens_I
        Tokens an item occupies in a cell: its padded tokens, but never more than the
        cap, so that an oversize item fills a cell and thus sits alone.
    num_samples_I
        Samples merged into each item; 1 for a dummy.
    num_dummies
        Trailing items that hold no sample.
    """

    SCHEMA: ClassVar[str] = "rpopt.items/1"

    item_of_sample_N: Int64Array
    padded_tokens_I: Int64Array
    weight_tokens_I: Int64Array
    num_samples_I: Int64Array
    num_dummies: int = 0

    def __post_init__(self) -> None:
        """Store arrays read-only."""
        freeze(
            self,
            "item_of_sample_N",
            int_array(
                self.item_of_sample_N, name="item_of_sample_N", ndim=1, minimum=DROPPED
            ),
        )
        for name in ("padded_tokens_I", "weight_tokens_I", "num_samples_I"):
            array = int_array(getattr(self, name), name=name, ndim=1, minimum=1)
            freeze(self, name, array)

    @property
    def num_items(self) -> int:
        """I, dummies included."""
        return int(self.weight_tokens_I.size)

    @property
    def kept_samples(self) -> Int64Array:
        """Ids of the samples that are in some item, in increasing order."""
        return np.flatnonzero(self.item_of_sample_N != DROPPED)

    @property
    def dropped_samples(self) -> Int64Array:
        """Ids of the dropped samples, in increasing order."""
        return np.flatnonzero(self.item_of_sample_N == DROPPED)


def build_items(window: Window, rules: PackingRules) -> Items:
    """Merge bundles and apply the oversize policy.

    Raises
    ------
    InfeasibleError
        When a sample or bundle is longer than the cap under the policy "error", a
        bundle has more samples than a cell may hold, or no sample is left.
    """
    padded_N = -(-window.length_N // rules.pad_multiple) * rules.pad_multiple
    item_N = _merge_bundles(window)
    padded_I = np.bincount(item_N, weights=padded_N).astype(np.int64)
    count_I = np.bincount(item_N)
    _check_bundle_sizes(count_I, item_N, rules)
    over_I = padded_I > rules.token_cap
    if over_I.any() and rules.oversize == "error":
        _refuse_oversize(over_I, item_N, padded_I, rules)
    keep_I = ~over_I if rules.oversize == "drop" else np.ones_like(over_I)
    if not keep_I.any():
        raise InfeasibleError(
            f"all {window.num_samples} samples are longer than token_cap ="
            f" {rules.token_cap} and oversize = 'drop' leaves none; raise the cap"
        )
    new_id_I = np.where(keep_I, np.cumsum(keep_I) - 1, DROPPED)
    return Items(
        item_of_sample_N=new_id_I[item_N],
        padded_tokens_I=padded_I[keep_I],
        weight_tokens_I=np.minimum(padded_I[keep_I], rules.token_cap),
        num_samples_I=count_I[keep_I],
    )


def add_dummies(items: Items, num_cells: int, rules: PackingRules) -> Items:
    """Fill up with one-token dummies so that no cell must stay empty.

    Raises
    ------
    InfeasibleError
        When there are fewer items than cells and the rules do not ask for dummies.
    """
    missing = num_cells - items.num_items
    if missing <= 0:
        return items
    if not rules.dummies:
        raise InfeasibleError(
            f"{items.num_items} samples cannot fill {num_cells} cells without an empty"
            " one; allow zero-weight dummies (dummies = True), or lower dp or"
            " row_multiple"
        )
    pad = np.full(missing, rules.pad_multiple)
    return Items(
        item_of_sample_N=items.item_of_sample_N,
        padded_tokens_I=np.concatenate([items.padded_tokens_I, pad]),
        weight_tokens_I=np.concatenate([items.weight_tokens_I, pad]),
        num_samples_I=np.concatenate([items.num_samples_I, np.ones_like(pad)]),
        num_dummies=missing,
    )


def _merge_bundles(window: Window) -> Int64Array:
    """Return the item of each sample, numbered in the order of first samples."""
    ids = np.arange(window.num_samples)
    if window.bundle_N is None:
        return ids
    loner = window.bundle_N < 0
    key_N = np.where(loner, ids, window.num_samples + window.bundle_N)
    _, first, inverse = np.unique(key_N, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return order[inverse]


def _check_bundle_sizes(
    count_I: Int64Array, item_N: Int64Array, rules: PackingRules
) -> None:
    limit = rules.max_samples_per_cell
    if limit is not None and count_I.max() > limit:
        item = int(count_I.argmax())
        raise InfeasibleError(
            f"the bundle of samples {_some(np.flatnonzero(item_N == item))} has"
            f" {count_I[item]} samples; max_samples_per_cell = {limit}"
        )


def _refuse_oversize(
    over_I: np.ndarray, item_N: Int64Array, padded_I: Int64Array, rules: PackingRules
) -> None:
    samples = np.flatnonzero(over_I[item_N])
    raise InfeasibleError(
        f"{samples.size} samples (ids {_some(samples)}) belong to items longer than"
        f" token_cap = {rules.token_cap} (longest {int(padded_I.max())} padded tokens);"
        " raise the cap, or choose oversize = 'alone' or 'drop'"
    )


def _some(ids: Sequence[int] | Int64Array, limit: int = 10) -> str:
    shown = ", ".join(str(int(i)) for i in ids[:limit])
    return shown if len(ids) <= limit else f"{shown}, … {len(ids) - limit} more"
