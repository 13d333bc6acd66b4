"""prime-rl: `rollouts/step_N/rank_R.bin`, msgpack lists of packed micro-batches.

A micro-batch is an array in the order of the fields of the struct that wrote it. Fields
have been added over time, so the routes are found by form: `[bytes, shape, dtype]` with
a shape of three axes. `seq_lens` are the lengths that the packed sequence splits into.
Read from PrimeIntellect-ai/prime-rl 559b4477.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import reader, shaped, without_trailing_zeros
from rpopt.io.routes import SampleRoutes
from rpopt.records import IntArray

_INPUT_IDS, _SEQ_LENS, _ROUTES = 0, 8, 10


@reader
def read_micro_batches(path: AnyPath, model: RoutedModel) -> Iterator[SampleRoutes]:
    """Yield the samples of every micro-batch, in order.

    Raises
    ------
    FileFormatError
        When the file is damaged or written by another version.
    InstanceError
        When `msgpack` is not installed.
    """
    try:
        import msgpack
    except ImportError as error:
        raise InstanceError(
            "prime-rl files need the package msgpack; install rpopt[readers]"
        ) from error
    with Path(path).open("rb") as file:
        unpacker = msgpack.Unpacker(file, raw=False, max_buffer_size=2**32 - 1)
        try:
            num_batches = unpacker.read_array_header()
            for index in range(num_batches):
                yield from _split(unpacker.unpack(), index)
        except (msgpack.exceptions.UnpackException, msgpack.OutOfData) as error:
            raise FileFormatError(
                f"truncated or not a msgpack list of micro-batches ({error!r})"
            ) from error


def _split(batch: Any, index: int) -> Iterator[SampleRoutes]:
    where = f"micro-batch {index}"
    if not isinstance(batch, list) or len(batch) <= _SEQ_LENS:
        raise FileFormatError(
            f"{where} has {len(batch) if isinstance(batch, list) else 'no'} fields;"
            " written by another version of prime-rl?"
        )
    lengths = batch[_SEQ_LENS]
    if not _is_counts(lengths) or sum(lengths) != len(batch[_INPUT_IDS]):
        raise FileFormatError(
            f"{where}, field 'seq_lens' does not split its input_ids; written by"
            " another version of prime-rl?"
        )
    routes = _routes(batch[_ROUTES] if len(batch) > _ROUTES else None, index)
    if routes is not None and len(routes) != sum(lengths):
        raise FileFormatError(
            f"{where}, field 'routed_experts' has {len(routes)} rows for"
            f" {sum(lengths)} tokens"
        )
    for end, tokens in zip(accumulate(lengths), lengths, strict=True):
        part = None
        if routes is not None:
            part = without_trailing_zeros(routes[end - tokens : end])
        yield SampleRoutes(length_tokens=tokens, routes=part, may_end_early=True)


def _routes(value: Any, index: int) -> IntArray | None:
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 3 and _is_counts(value[1])):
        raise FileFormatError(
            f"micro-batch {index}, field 'routed_experts' is not [data, shape, dtype]"
        )
    data, shape, dtype = value
    return shaped(data, str(dtype), tuple(shape), "routed_experts", index)


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v > 0 for v in value)
