"""What a rank tells the others about its samples: lengths and sparse histograms.

Raw routes never travel. A histogram entry is written only where it is not zero, and the
message is compressed.

Axis letters: N samples, L MoE layers, E experts, Z entries that are not zero.
"""

import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError, MismatchError
from rpopt.records import Int64Array, IntArray
from rpopt.window import Window

_OPTIONAL = ("routed_tokens_N", "prompt_group_N", "bundle_N")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSamples:
    """The samples of one rank, as `rpopt.window.Window` describes them.

    Parameters
    ----------
    length_N
        Tokens of each sample; may be empty on some ranks.
    demand_NLE
        Token copies per MoE layer and logical expert; None to plan on lengths only.
    top_k
        Experts per token; 0 without demand.
    loss_tokens_N
        Tokens of each sample that count in the loss; left out, all of them.
    routed_tokens_N, prompt_group_N, bundle_N
        As in `Window`; ids of groups and bundles are shared by all ranks.
    """

    length_N: IntArray
    demand_NLE: IntArray | None = None
    top_k: int = 0
    loss_tokens_N: npt.NDArray[np.integer] | None = None
    routed_tokens_N: IntArray | None = None
    prompt_group_N: IntArray | None = None
    bundle_N: IntArray | None = None

    @property
    def num_samples(self) -> int:
        """N of this rank."""
        return len(self.length_N)


def encode(samples: LocalSamples) -> bytes:
    """Return a message with all but the zeros."""
    length_N = np.asarray(samples.length_N, dtype=np.int64)
    loss_N = length_N if samples.loss_tokens_N is None else samples.loss_tokens_N
    arrays: dict[str, npt.NDArray[np.int64]] = {
        "length_N": length_N,
        "loss_tokens_N": np.asarray(loss_N, dtype=np.int64),
        "top_k": np.array([samples.top_k]),
    }
    for name in _OPTIONAL:
        value = getattr(samples, name)
        if value is not None:
            arrays[name] = np.asarray(value, dtype=np.int64)
    if samples.demand_NLE is not None:
        demand_NLE = np.asarray(samples.demand_NLE)
        where_Z = np.flatnonzero(demand_NLE)
        arrays["demand_shape"] = np.array(demand_NLE.shape)
        arrays["demand_step_Z"] = np.diff(where_Z, prepend=0)
        arrays["demand_count_Z"] = demand_NLE.reshape(-1)[where_Z].astype(np.int64)
    for name, array in arrays.items():
        if name.endswith("_N") and array.shape != length_N.shape:
            raise InstanceError(
                f"{name} has shape {array.shape} for {length_N.size} samples"
            )
    return zlib.compress(_pack(arrays), level=1)


def decode(message: bytes) -> LocalSamples:
    """Return the samples of a message."""
    with np.load(io.BytesIO(zlib.decompress(message)), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    demand_NLE = None
    if "demand_shape" in arrays:
        demand_NLE = np.zeros(arrays["demand_shape"], dtype=np.int32)
        where_Z = np.cumsum(arrays["demand_step_Z"])
        demand_NLE.reshape(-1)[where_Z] = arrays["demand_count_Z"]
    return LocalSamples(
        length_N=arrays["length_N"],
        demand_NLE=demand_NLE,
        top_k=int(arrays["top_k"][0]),
        loss_tokens_N=arrays["loss_tokens_N"],
        **{name: arrays[name] for name in _OPTIONAL if name in arrays},
    )


def _pack(arrays: dict[str, npt.NDArray[np.int64]]) -> bytes:
    """Return an uncompressed `.npz`, every array in its narrowest type."""
    narrow = {}
    for name, array in arrays.items():
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        dtype = np.result_type(np.min_scalar_type(low), np.min_scalar_type(high))
        narrow[name] = array.astype(dtype) if dtype.kind in "iu" else array
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **narrow)
    return file.getvalue()


def lengths_window(parts: Sequence[LocalSamples]) -> Window:
    """Return the window of all ranks without routes, samples in rank order.

    Raises
    ------
    InstanceError
        When there is no sample, or a length is out of range.
    """
    bundles = _joined(parts, "bundle_N")
    return Window(
        length_N=np.concatenate([part.length_N for part in parts]), bundle_N=bundles
    )


def full_window(parts: Sequence[LocalSamples]) -> Window:
    """Return the window of all ranks, samples in rank order.

    Raises
    ------
    MismatchError
        When only some ranks bring histograms, or they differ in top-k or shape.
    InstanceError
        When the histograms are not what a window allows.
    """
    bringing = [part for part in parts if part.num_samples]
    kinds = {
        None if part.demand_NLE is None else (part.top_k, *part.demand_NLE.shape[1:])
        for part in bringing
    }
    if len(kinds) > 1:
        raise MismatchError(
            f"ranks differ in (top_k, layers, experts): {sorted(map(str, kinds))};"
            " bring histograms of the same model on all ranks, or on none"
        )
    if kinds <= {None}:
        return lengths_window(parts)
    demands = [np.asarray(part.demand_NLE) for part in bringing]
    return Window(
        length_N=np.concatenate([part.length_N for part in bringing]),
        demand_NLE=np.concatenate(demands).astype(np.int32),
        top_k=bringing[0].top_k,
        routed_tokens_N=_joined(bringing, "routed_tokens_N"),
        prompt_group_N=_joined(bringing, "prompt_group_N"),
        bundle_N=_joined(bringing, "bundle_N"),
    )


def _joined(parts: Sequence[LocalSamples], name: str) -> Int64Array | None:
    bringing = [part for part in parts if part.num_samples]
    values = [getattr(part, name) for part in bringing]
    if all(value is None for value in values):
        return None
    if any(value is None for value in values):
        raise MismatchError(f"only some ranks bring {name}; bring it on all or on none")
    return np.concatenate(values).astype(np.int64)
