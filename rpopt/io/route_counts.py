"""Checks and counts of one routed-expert array.

Axis letters: K top-k, r rows of one piece, L MoE layers, E experts.
"""

from collections.abc import Sequence

import numpy as np

from rpopt.errors import InstanceError
from rpopt.records import BoolArray, Int64Array, IntArray

MISSING = -1
ALL_ZERO_HINT = (
    "a dense layer, a pipeline stage that was not gathered, or a bug of the engine;"
    " name the MoE layers (moe_layers) if it is dense"
)
# Small enough for the widened copy of a piece to stay in the second-level cache.
_PIECE_IDS = 2**18
_Index = slice | Int64Array


class RouteCounter:
    """Checks and counts the routes of one sample after the other."""

    def __init__(
        self,
        *,
        top_k: int,
        num_experts: int,
        moe_layers: Int64Array | None,
        array_layers: int,
    ) -> None:
        self._top_k, self._num_experts = top_k, num_experts
        self.array_layers = array_layers
        self._moe, self._dense = _split_layers(moe_layers, array_layers)
        num_layers = array_layers - self._dense.size
        self.shape_LE = (num_layers, num_experts)
        self._offset_L = np.arange(num_layers, dtype=np.intp) * num_experts
        self._column_L = np.arange(array_layers, dtype=np.int64)[self._moe]

    def count(self, routes: IntArray) -> tuple[Int64Array, int]:
        """Return token copies [L, E] and how many rows are marked missing."""
        total = np.zeros(self._offset_L.size * self._num_experts, dtype=np.int64)
        num_missing = 0
        step = max(1, _PIECE_IDS // (self.array_layers * self._top_k))
        for start in range(0, len(routes), step):
            part = routes[start : start + step]
            if part.shape[2] != self._top_k:
                part = _without_weights(part, self._top_k, self._num_experts)
            counted_LE = self._count_compiled(part)
            if counted_LE is not None:
                self._check_dense(part)
                total += counted_LE.reshape(-1)
                continue
            ids_KrL = np.ascontiguousarray(np.moveaxis(part[:, self._moe], 2, 0))
            if ids_KrL.min() < 0:
                kept_r = self._present_rows(ids_KrL, start)
                num_missing += int((~kept_r).sum())
                ids_KrL, part = ids_KrL[:, kept_r], part[kept_r]
            self._check_ids(ids_KrL, start)
            self._check_dense(part)
            flat = ids_KrL.astype(np.intp)
            flat += self._offset_L
            total += np.bincount(flat.reshape(-1), minlength=total.size)
        return total.reshape(self.shape_LE), num_missing

    def _count_compiled(self, part: IntArray) -> Int64Array | None:
        """Return token copies [L, E]; None for a piece that needs a closer look."""
        from rpopt.io.route_kernels import count_ids

        if self._num_experts > np.iinfo(part.dtype).max:  # -1 would look like an id
            part = part.astype(np.int32)
        unsigned = np.array(part, order="C").view(f"u{part.dtype.itemsize}")
        counted_LE = np.zeros(self.shape_LE, dtype=np.int64)
        seen_E = np.empty(self._num_experts, dtype=np.int64)
        fine = count_ids(unsigned, self._column_L, self._top_k, counted_LE, seen_E)
        return counted_LE if fine else None

    def _present_rows(self, ids_KrL: IntArray, start: int) -> BoolArray:
        missing_KrL = ids_KrL == MISSING
        missing_r = missing_KrL.all(axis=(0, 2))
        partly_r = missing_KrL.any(axis=(0, 2)) & ~missing_r
        if partly_r.any():
            row = int(partly_r.argmax())
            raise InstanceError(
                f"row {start + row} is -1 in some places only; a missing row is -1 for"
                " every MoE layer and every one of its K ids (name the MoE layers,"
                " moe_layers, if the others are dense)"
            )
        present_r: BoolArray = ~missing_r
        return present_r

    def _check_ids(self, ids_KrL: IntArray, start: int) -> None:
        if ids_KrL.size == 0:
            return
        if ids_KrL.min() < 0 or ids_KrL.max() >= self._num_experts:
            bad_KrL = (ids_KrL < 0) | (ids_KrL >= self._num_experts)
            _, row, layer = np.argwhere(bad_KrL)[0]
            raise InstanceError(
                f"row {start + row}, MoE layer {layer} of the array holds expert ids"
                f" {ids_KrL[:, row, layer].tolist()} outside [0, {self._num_experts});"
                " check num_experts, and that missing rows (-1) were not stored in an"
                " unsigned type"
            )
        for k in range(1, self._top_k):
            same_krL = ids_KrL[:k] == ids_KrL[k]
            if same_krL.any():
                row, layer = np.argwhere(same_krL.any(axis=0))[0]
                self._refuse_repeated(ids_KrL, int(row), int(layer), start)

    def _refuse_repeated(
        self, ids_KrL: IntArray, row: int, layer: int, start: int
    ) -> None:
        where = f"row {start + row}, MoE layer {layer} of the array"
        if not ids_KrL[:, :, layer].any():
            raise InstanceError(f"{where} and its neighbours are 0: {ALL_ZERO_HINT}")
        raise InstanceError(
            f"{where} repeats an expert: {ids_KrL[:, row, layer].tolist()}; the ids of"
            " a token must differ (a filler row? the length may be wrong)"
        )

    def _check_dense(self, part: IntArray) -> None:
        """Refuse a dense layer that holds more than filler, the same in every row."""
        if self._dense.size and len(part):
            dense = part[:, self._dense]
            varies_L = (dense != dense[:1]).any(axis=(0, 2))
            if varies_L.any():
                layer = int(self._dense[int(varies_L.argmax())])
                raise InstanceError(
                    f"layer {layer} is not among moe_layers but its routes differ from"
                    " token to token; correct moe_layers"
                )


def layer_numbers(moe_layers: Sequence[int]) -> Int64Array:
    """Return increasing layer numbers, or say why they are not."""
    numbers = np.array(moe_layers, dtype=np.int64)
    if numbers.size == 0 or numbers[0] < 0 or np.any(np.diff(numbers) <= 0):
        raise InstanceError(
            f"moe_layers = {list(moe_layers)} must be increasing layer numbers"
        )
    return numbers


def _split_layers(
    moe_layers: Int64Array | None, array_layers: int
) -> tuple[_Index, Int64Array]:
    """Return how to pick the MoE layers of an array, and its dense layers."""
    nothing = np.zeros(0, dtype=np.int64)
    if moe_layers is None or array_layers == moe_layers.size:
        return slice(None), nothing
    first, last = int(moe_layers[0]), int(moe_layers[-1])
    if array_layers <= last:
        raise InstanceError(
            f"its array has {array_layers} layers, but moe_layers names"
            f" {moe_layers.size} up to number {last}; it must carry either these or all"
            " layers of the model"
        )
    dense = np.setdiff1d(np.arange(array_layers), moe_layers)
    if last - first + 1 == moe_layers.size:
        return slice(first, last + 1), dense
    return moe_layers, dense


def check_array(routes: IntArray, top_k: int) -> None:
    """Refuse anything but integers [rows, layers, K or 2 K]."""
    if not isinstance(routes, np.ndarray) or not np.issubdtype(
        routes.dtype, np.integer
    ):
        kind = getattr(routes, "dtype", type(routes).__name__)
        raise InstanceError(f"routes are {kind}; they must be a NumPy integer array")
    if routes.ndim != 3 or routes.shape[1] == 0:
        raise InstanceError(
            f"routes have shape {routes.shape}; [rows, layers, K] is needed (reshape"
            " [rows, layers x K] first)"
        )
    if routes.shape[2] not in (top_k, 2 * top_k):
        raise InstanceError(
            f"routes have {routes.shape[2]} ids per token and layer; top_k = {top_k}"
        )


def _without_weights(part: IntArray, top_k: int, num_experts: int) -> IntArray:
    """Drop float32 weights stored as int32 bits after the ids.

    The bits of a normal positive float32 are at least 2**23, far above any expert id,
    so a column that holds ids instead of weights is recognised.
    """
    extra = part[:, :, top_k:]
    if part.dtype != np.int32 or np.any((extra > 0) & (extra < num_experts)):
        raise InstanceError(
            f"routes have {part.shape[2]} columns of {part.dtype}: neither top_k ="
            f" {top_k} ids, nor as many int32 ids and the bits of their weights; check"
            " top_k"
        )
    return part[:, :, :top_k]
