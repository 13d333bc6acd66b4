"""AReaL: `<version>/<task_id>.jsonl` (lengths), and its two-dimensional routes.

`ModelResponse.routed_experts` is int32 [T - 1, L x K]. When a rollout is interrupted
and resumed, each segment's whole array is appended, so rows beyond the tokens mean that
prefixes are there twice: what was recorded last is kept. Read from
areal-project/AReaL cbff54d6.
"""

from collections.abc import Iterator

from rpopt.errors import InstanceError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import count, json_lines, reader
from rpopt.io.routes import SampleRoutes
from rpopt.records import IntArray


@reader
def read_rollout(path: AnyPath, model: RoutedModel) -> Iterator[SampleRoutes]:
    """Yield one sample per line; the file has lengths only.

    Raises
    ------
    FileFormatError
        When a line is damaged or lacks `seqlen`.
    """
    for index, sample in json_lines(path):
        yield SampleRoutes(length_tokens=count(sample, "seqlen", index))


def sample_from_response(
    routes: IntArray, *, length_tokens: int, model: RoutedModel
) -> SampleRoutes:
    """Return the sample of one response; rows > T are a duplicated prefix.

    Parameters
    ----------
    routes
        Expert ids [rows, L x K].
    length_tokens
        T.

    Raises
    ------
    InstanceError
        When the columns are not L x K.
    """
    columns = [n * model.top_k for n in (model.num_layers, len(model.moe_layers))]
    if routes.ndim != 2 or routes.shape[1] not in columns:
        raise InstanceError(
            f"routes have shape {routes.shape}; [rows, layers x K] is needed, with"
            f" {columns[0]} columns (all layers) or {columns[1]} (MoE layers)"
        )
    if len(routes) > length_tokens:
        # The last segment went over all tokens but the last one.
        routes = routes[len(routes) - (length_tokens - 1) :]
    return SampleRoutes(
        length_tokens=length_tokens, routes=routes.reshape(len(routes), -1, model.top_k)
    )
