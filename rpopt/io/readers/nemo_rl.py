"""NeMo-RL: `train_data_stepN.jsonl` (lengths), and the envelope of routes.

An envelope is the text `nrlre1:<type>:<S>x<L>x<K>:<base64>`, where S is the length and
the last row is made up. A missing row is -1. Where a line of the file has an envelope
under `routed_experts`, its routes are read too. Read from NVIDIA-NeMo/RL 7ea279ab.
"""

import re
from collections.abc import Iterator

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import (
    count,
    decode_base64,
    group,
    json_lines,
    reader,
    shaped,
)
from rpopt.io.routes import SampleRoutes
from rpopt.records import IntArray

_ENVELOPE = re.compile(r"nrlre1:(int8|int16|int32):(\d+)x(\d+)x(\d+):(.*)", re.DOTALL)


@reader
def read_train_data(path: AnyPath, model: RoutedModel) -> Iterator[SampleRoutes]:
    """Yield one sample per line.

    Raises
    ------
    FileFormatError
        When a line is damaged or lacks `input_lengths`.
    """
    for index, sample in json_lines(path):
        tokens = count(sample, "input_lengths", index)
        text = sample.get("routed_experts")
        routes = None if text is None else decode_envelope(text, index)
        yield SampleRoutes(
            length_tokens=tokens,
            routes=routes,
            prompt_group=group(sample, "idx"),
        )


def decode_envelope(text: str, index: int = 0) -> IntArray:
    """Return the routes [S, L, K] of an envelope.

    Raises
    ------
    FileFormatError
        When it is cut, or of another version or type.
    """
    match = _ENVELOPE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FileFormatError(
            f"sample {index}, field 'routed_experts' starts {str(text)[:24]!r};"
            " 'nrlre1:<int8|int16|int32>:<S>x<L>x<K>:' is read"
        )
    dtype, *shape, data = match.groups()
    return shaped(
        decode_base64(data, "routed_experts", index),
        dtype,
        tuple(map(int, shape)),
        "routed_experts",
        index,
    )
