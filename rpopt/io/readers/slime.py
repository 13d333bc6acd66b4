"""slime, and its fork miles: debug files of rollouts and of training.

`--save-debug-rollout-data` writes `{"rollout_id", "samples"}`; a sample has `tokens`
and, with routing replay, `rollout_routed_experts` [T - 1, layers, K] (slime: int32
tensor, miles: int32 array). `--save-debug-train-data` writes the schedule that was
trained, without routes. Read from THUDM/slime 624b824a and radixark/miles 31f1ca96.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers.fields import field, group, length, reader
from rpopt.io.readers.torch_files import as_integers, load
from rpopt.io.routes import SampleRoutes

TRAIN_DATA_VERSION = 2


@reader
def read_rollout(path: AnyPath, model: RoutedModel) -> Iterator[SampleRoutes]:
    """Yield the samples of a debug rollout file; those marked for removal are left out.

    Raises
    ------
    FileFormatError
        When the file is damaged or of another form.
    """
    for index, sample in enumerate(_samples(load(path))):
        tokens = length(sample, "tokens", index)
        if not sample.get("remove_sample"):
            routes = sample.get("rollout_routed_experts")
            yield SampleRoutes(
                length_tokens=tokens,
                routes=None if routes is None else as_integers(routes),
                may_end_early=True,
                prompt_group=group(sample, "group_index"),
            )


def read_schedule(path: AnyPath) -> list[list[list[int]]]:
    """Return the micro-batches that slime trained, as sample ids per rank and row.

    Sample ids are positions in the rollout file, as in its `sample_indices`.

    Raises
    ------
    FileFormatError
        When the file is damaged or of another version.
    """
    with reading(path):
        data = load(path)
        version = data.get("format_version") if isinstance(data, Mapping) else None
        if version != TRAIN_DATA_VERSION:
            raise FileFormatError(
                f"format_version is {version!r}; {TRAIN_DATA_VERSION} is read"
            )
        shards = sorted(
            field(data, "dp_shards", 0), key=lambda s: int(s["data_parallel_rank"])
        )
        return [_shard(index, shard) for index, shard in enumerate(shards)]


def _samples(data: Any) -> list[Any]:
    samples = data.get("samples") if isinstance(data, Mapping) else None
    if not isinstance(samples, list) or not samples or "dp_shards" in data:
        raise FileFormatError(
            "has no list of samples; give the file of --save-debug-rollout-data"
        )
    return samples


def _shard(index: int, shard: Mapping[str, Any]) -> list[list[int]]:
    ids = [int(i) for i in field(shard, "sample_indices", index)]
    batches = [[int(i) for i in b] for b in field(shard, "micro_batch_indices", index)]
    if sorted(i for batch in batches for i in batch) != list(range(len(ids))):
        raise FileFormatError(
            f"rank {index}, micro_batch_indices do not hold each of its {len(ids)}"
            " samples once"
        )
    return [[ids[i] for i in batch] for batch in batches]
