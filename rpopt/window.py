"""The window: all samples of one optimizer step, with their routing demand.

Axis letters: N samples, L MoE layers, E experts.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.records import Int64Array, Record, freeze, int_array, positive_int

MAX_LENGTH_TOKENS = 2**31 - 1
_CHUNK_ENTRIES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window(Record):
    """All samples of one optimizer step.

    Parameters
    ----------
    length_N
        Tokens of each sample that are trained; at least 1.
    routed_tokens_N
        Tokens of each sample that carry routes; 0 where a sample has none. Left out,
        it is derived from the demand.
    demand_NLE
        Token copies that each sample wants per (MoE layer, expert), logical expert
        ids; every layer of sample i sums to `top_k * routed_tokens_N[i]`. None when
        only lengths are known.
    top_k
        Experts per token; 0 when `demand_NLE` is None.
    prompt_group_N
        Samples of one prompt share an id; None when unknown.
    bundle_N
        Samples with one id share a cell; -1 stands for no bundle. None when there
        are no bundles.
    layer_ids_L
        Absolute layer number of each MoE layer; left out, 0 to L - 1.
    origin
        Where the window came from, in words.

    Raises
    ------
    InstanceError
        When the window is empty or a field breaks one of the rules above.
    """

    SCHEMA: ClassVar[str] = "rpopt.window/1"

    length_N: Int64Array
    routed_tokens_N: Int64Array | None = None
    demand_NLE: npt.NDArray[np.int32] | None = None
    top_k: int = 0
    prompt_group_N: Int64Array | None = None
    bundle_N: Int64Array | None = None
    layer_ids_L: Int64Array | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        """Check every field and store arrays read-only."""
        length_N = int_array(self.length_N, name="length_N", ndim=1)
        if length_N.size == 0:
            raise InstanceError("the window is empty; it needs at least one sample")
        _check_lengths(length_N)
        freeze(self, "length_N", length_N)
        for name in ("prompt_group_N", "bundle_N"):
            value = getattr(self, name)
            if value is not None:
                array = int_array(value, name=name, ndim=1, minimum=-1)
                _same_count(name, array.size, length_N.size)
                freeze(self, name, array)
        if self.demand_NLE is None:
            self._check_lengths_only()
        else:
            self._check_demand()

    def _check_lengths_only(self) -> None:
        if self.top_k or self.layer_ids_L is not None:
            raise InstanceError(
                f"top_k = {self.top_k} or layer ids without demand_NLE; leave both out"
                " for a window with lengths only"
            )
        routed_N = np.zeros(self.num_samples, dtype=np.int64)
        if self.routed_tokens_N is not None and np.any(self.routed_tokens_N):
            raise InstanceError(
                "routed_tokens_N counts routes but demand_NLE is missing; give both or"
                " neither"
            )
        freeze(self, "routed_tokens_N", int_array(routed_N, name="routed", ndim=1))

    def _check_demand(self) -> None:
        demand = int_array(
            self.demand_NLE, name="demand_NLE", ndim=3, dtype=np.int32, minimum=0
        )
        num_samples, num_layers, num_experts = demand.shape
        _same_count("demand_NLE", num_samples, self.num_samples)
        if num_layers == 0 or num_experts == 0:
            raise InstanceError(
                f"demand_NLE has shape {demand.shape}; no axis may be 0"
            )
        top_k = positive_int(self.top_k, name="top_k")
        if top_k > num_experts:
            raise InstanceError(f"top_k = {top_k} exceeds the {num_experts} experts")
        copies_NL = _layer_sums(demand)
        routed = self.routed_tokens_N
        if routed is None:
            routed_N = copies_NL[:, 0] // top_k
        else:
            routed_N = int_array(routed, name="routed_tokens_N", ndim=1, minimum=0)
            _same_count("routed_tokens_N", routed_N.size, num_samples)
        _check_sums(copies_NL, routed_N, top_k)
        too_many = routed_N > self.length_N
        if too_many.any():
            i = int(too_many.argmax())
            raise InstanceError(
                f"sample {i} has {routed_N[i]} routed tokens but only"
                f" {self.length_N[i]} tokens"
            )
        ids = np.arange(num_layers) if self.layer_ids_L is None else self.layer_ids_L
        layer_ids_L = int_array(ids, name="layer_ids_L", ndim=1, minimum=0)
        if layer_ids_L.size != num_layers or np.any(np.diff(layer_ids_L) <= 0):
            raise InstanceError(
                f"layer_ids_L must be {num_layers} increasing layer numbers,"
                f" got {layer_ids_L.tolist()}"
            )
        freeze(self, "demand_NLE", demand)
        freeze(self, "routed_tokens_N", int_array(routed_N, name="routed", ndim=1))
        freeze(self, "layer_ids_L", layer_ids_L)
        freeze(self, "top_k", top_k)

    @property
    def num_samples(self) -> int:
        """N."""
        return int(self.length_N.size)

    @property
    def num_layers(self) -> int:
        """L; 0 for a window with lengths only."""
        return 0 if self.demand_NLE is None else int(self.demand_NLE.shape[1])

    @property
    def num_experts(self) -> int:
        """E; 0 for a window with lengths only."""
        return 0 if self.demand_NLE is None else int(self.demand_NLE.shape[2])

    @property
    def routed_N(self) -> Int64Array:
        """Tokens of each sample that carry routes, always present."""
        assert self.routed_tokens_N is not None
        return self.routed_tokens_N

    @property
    def total_tokens(self) -> int:
        """Sum of all lengths."""
        return int(self.length_N.sum())


def _check_lengths(length_N: Int64Array) -> None:
    bad = (length_N < 1) | (length_N > MAX_LENGTH_TOKENS)
    if bad.any():
        i = int(bad.argmax())
        raise InstanceError(
            f"sample {i} has length {length_N[i]}; lengths must lie in"
            f" [1, {MAX_LENGTH_TOKENS}] tokens ({int(bad.sum())} samples do not)"
        )


def _same_count(name: str, count: int, expected: int) -> None:
    if count != expected:
        raise InstanceError(f"{name} has {count} entries for {expected} samples")


def _layer_sums(demand_NLE: npt.NDArray[np.int32]) -> Int64Array:
    """Sum each layer's demand exactly, without an int64 copy of the whole array."""
    num_samples, num_layers, num_experts = demand_NLE.shape
    sums_NL = np.empty((num_samples, num_layers), dtype=np.int64)
    step = max(1, _CHUNK_ENTRIES // (num_layers * num_experts))
    for start in range(0, num_samples, step):
        part = demand_NLE[start : start + step]
        sums_NL[start : start + step] = part.sum(axis=2, dtype=np.int64)
    return sums_NL


def _check_sums(copies_NL: Int64Array, routed_N: Int64Array, top_k: int) -> None:
    wrong_NL = copies_NL != top_k * routed_N[:, None]
    if wrong_NL.any():
        i, layer = np.argwhere(wrong_NL)[0]
        raise InstanceError(
            f"demand of sample {i} in layer {layer} sums to {copies_NL[i, layer]};"
            f" top_k x routed tokens = {top_k} x {routed_N[i]} = {top_k * routed_N[i]}"
            f" ({int(wrong_NL.any(axis=1).sum())} samples differ)"
        )
