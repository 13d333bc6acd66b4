"""slime, and its fork miles: debug files of rollouts and of training.

`--save-debug-rollout-data` writes `{"rollout_id", "samples"}`; a sample has `tokens`
and, with routing replay, `rollout_routed_experts` [T - 1, layers, K] (slime: int32
tensor, miles: int32 array). `--save-debug-train-data` writes the schedule that was
trained, without routes: slime one file with `dp_shards`, miles one file per rank with
`rollout_data`. Either way a rank has `partition`, the positions of its samples in the
rollout file, `micro_batch_indices`, which index the partition, and `num_microbatches`,
one number per optimizer step. Read from THUDM/slime 624b824a and radixark/miles
31f1ca96.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
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
    """Yield the samples of a debug rollout file.

    Those marked `remove_sample` stay: they are trained, with a loss mask of zeros.

    Raises
    ------
    FileFormatError
        When the file is damaged or of another form.
    """
    for index, sample in enumerate(_samples(load(path))):
        tokens = length(sample, "tokens", index)
        routes = sample.get("rollout_routed_experts")
        yield SampleRoutes(
            length_tokens=tokens,
            routes=None if routes is None else as_integers(routes),
            may_end_early=True,
            prompt_group=group(sample, "group_index"),
        )


def read_schedule(paths: Sequence[AnyPath]) -> list[list[list[int]]]:
    """Return the micro-batches that were trained, as sample ids per DP rank and row.

    Sample ids are positions in the rollout file, so they are those of the window that
    `read_rollout` makes of it. Ranks with the same samples (tensor, pipeline and
    context parallel copies) count once. Several optimizer steps follow each other, and
    a warning is logged.

    Parameters
    ----------
    paths
        The one file of slime, or the files of all ranks of miles.

    Raises
    ------
    FileFormatError
        When a file is damaged or of another version.
    """
    schedule: dict[tuple[int, ...], list[list[int]]] = {}
    for path in paths:
        with reading(path):
            for rank, shard in _shards(load(path)):
                partition, rows = _rows(rank, shard)
                schedule.setdefault(partition, rows)
            steps = len(shard.get("num_microbatches") or [0])
        if steps > 1:
            logging.getLogger(__name__).warning(
                "%s: holds %d optimizer steps, which J adds up; a plan is for one",
                path,
                steps,
            )
    return list(schedule.values())


def _samples(data: Any) -> list[Any]:
    samples = data.get("samples") if isinstance(data, Mapping) else None
    if not isinstance(samples, list) or not samples or "dp_shards" in data:
        raise FileFormatError(
            "has no list of samples; give the file of --save-debug-rollout-data"
        )
    return samples


def _shards(data: Any) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the rank and the schedule of every DP rank in a file, in order."""
    if isinstance(data, Mapping) and "rollout_data" in data:
        return [(int(field(data, "rank", 0)), field(data, "rollout_data", 0))]
    version = data.get("format_version") if isinstance(data, Mapping) else None
    if version != TRAIN_DATA_VERSION:
        raise FileFormatError(
            f"format_version is {version!r}; {TRAIN_DATA_VERSION} is read, and files"
            " with rollout_data"
        )
    shards = field(data, "dp_shards", 0)
    if not shards:
        raise FileFormatError("dp_shards is empty")
    return sorted(
        ((int(shard["data_parallel_rank"]), shard) for shard in shards),
        key=lambda ranked: ranked[0],
    )


def _rows(
    rank: int, shard: Mapping[str, Any]
) -> tuple[tuple[int, ...], list[list[int]]]:
    """Return the samples of a rank, and its micro-batches as sample ids."""
    partition = tuple(map(int, field(shard, "partition", rank, what="rank")))
    given = field(shard, "micro_batch_indices", rank, what="rank")
    batches = [[int(i) for i in batch] for batch in given]
    if sorted(i for batch in batches for i in batch) != list(range(len(partition))):
        raise FileFormatError(
            f"rank {rank}, micro_batch_indices do not hold each of its"
            f" {len(partition)} samples once"
        )
    return partition, [[partition[i] for i in batch] for batch in batches]
