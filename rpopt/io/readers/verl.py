"""verl: a `DataProto`, in memory or saved with `save_to_disk` (a pickle).

`routed_experts` is [B, P + R, L, K] int16, padded like `attention_mask`, or nested with
one row per token; the row of the last token is 0. Samples of one prompt share a `uid`;
padding samples (`is_padding`) are left out. Read from verl-project/verl 1dda039b.
"""

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath, one_line
from rpopt.io.readers.fields import reader, without_trailing_zeros
from rpopt.io.readers.torch_files import as_integers
from rpopt.io.routes import SampleRoutes


def samples_from_batch(data: Any) -> Iterator[SampleRoutes]:
    """Yield the samples of a `DataProto`, or of anything with its two mappings.

    Parameters
    ----------
    data
        Has `batch` (tensors by name) and `non_tensor_batch` (arrays by name).

    Raises
    ------
    InstanceError
        When there is no `attention_mask`.
    """
    batch, others = getattr(data, "batch", None), getattr(data, "non_tensor_batch", {})
    if batch is None or "attention_mask" not in batch.keys():  # noqa: SIM118 (TensorDict)
        raise InstanceError("batch has no 'attention_mask'; a DataProto is needed")
    mask = as_integers(batch["attention_mask"]).astype(bool)
    routes = batch["routed_experts"] if "routed_experts" in batch.keys() else None  # noqa: SIM118
    groups = _numbered(others, "uid", len(mask))
    padding = np.asarray(others.get("is_padding", np.zeros(len(mask), dtype=bool)))
    for i in range(len(mask)):
        if not padding[i]:
            rows = None if routes is None else as_integers(routes[i])
            if rows is not None and len(rows) == mask.shape[1]:
                rows = rows[mask[i]]
            yield SampleRoutes(
                length_tokens=int(mask[i].sum()),
                routes=None if rows is None else without_trailing_zeros(rows),
                may_end_early=True,
                prompt_group=groups[i],
            )


@reader
def read_saved(path: AnyPath, *, trust_pickle: bool) -> Iterator[SampleRoutes]:
    """Yield the samples of a file written by `DataProto.save_to_disk`.

    Raises
    ------
    FileFormatError
        When the caller does not trust the file, or it cannot be read.
    """
    if not trust_pickle:
        raise FileFormatError(
            "a saved DataProto is a pickle, and loading it runs whatever code is in"
            " it; give --trust-pickle (trust_pickle=True) if you wrote it yourself"
        )
    with Path(path).open("rb") as file:
        try:
            data = pickle.load(file)
        except Exception as error:  # whatever the code in it raises
            raise FileFormatError(
                f"is no readable pickle of a DataProto ({one_line(error)}); is it"
                " whole, and is verl installed?"
            ) from error
    yield from samples_from_batch(data)


def _numbered(others: Mapping[str, Any], name: str, num: int) -> list[int | None]:
    """Return a number per distinct value of a column, in order of appearance."""
    if name not in others:
        return [None] * num
    seen: dict[str, int] = {}
    return [seen.setdefault(str(value), len(seen)) for value in others[name]]
