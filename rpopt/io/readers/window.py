"""From the files of one stack to a window."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from tqdm import tqdm

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers import api, areal, nemo_rl, prime_rl, slime, verl
from rpopt.io.routes import RoutesReport, SampleRoutes, WindowBuilder
from rpopt.window import Window

Reader = Callable[[AnyPath, RoutedModel], Iterator[SampleRoutes]]
SOURCES: Mapping[str, tuple[Reader, str]] = {
    "slime": (slime.read_rollout, "slime or miles --save-debug-rollout-data (.pt)"),
    "prime-rl": (prime_rl.read_micro_batches, "prime-rl rank_R.bin"),
    "nemo-rl": (nemo_rl.read_train_data, "NeMo-RL train_data_stepN.jsonl"),
    "areal": (areal.read_rollout, "AReaL task jsonl (lengths only)"),
    "vllm": (api.read_vllm, "vLLM responses, one JSON object per line"),
    "sglang": (api.read_sglang, "SGLang responses, one JSON object per line"),
}


def read_window(
    source: str,
    paths: Sequence[AnyPath],
    model: RoutedModel,
    *,
    trust_pickle: bool = False,
    progress: bool = True,
) -> tuple[Window, RoutesReport]:
    """Read the files of one optimizer step, in the order given.

    Samples without a route are kept and counted in the report; the planner gives them
    the mean histogram of their prompt group, else of the window.

    Parameters
    ----------
    source
        One of `SOURCES`, or "verl" (a saved DataProto, which is a pickle).
    paths
        Files of that source.
    model
        Layers, experts and top-k of the model.
    trust_pickle
        Unpickle verl files; code in them runs.
    progress
        Show a bar on stderr when that is a terminal.

    Raises
    ------
    InstanceError
        When the source is unknown.
    FileFormatError
        When a file is damaged or a sample breaks a rule; the message names file,
        sample and field.
    """
    builder = WindowBuilder(
        top_k=model.top_k, num_experts=model.num_experts, moe_layers=model.moe_layers
    )
    off = not (progress and sys.stderr.isatty())
    with tqdm(desc="samples", unit="", disable=off) as bar:
        for path in paths:
            for sample in _samples(source, path, model, trust_pickle=trust_pickle):
                try:
                    _check_layers(sample, model, builder.report.num_samples)
                    builder.add(sample)
                except InstanceError as error:
                    raise FileFormatError(f"{path}: routes of {error}") from error
                bar.update()
    return builder.window(origin=f"{source} rollout"), builder.report


def _samples(
    source: str, path: AnyPath, model: RoutedModel, *, trust_pickle: bool
) -> Iterator[SampleRoutes]:
    if source == "verl":
        return verl.read_saved(path, trust_pickle=trust_pickle)
    if source not in SOURCES:
        raise InstanceError(
            f"source {source!r} is unknown; known are {sorted((*SOURCES, 'verl'))}"
        )
    return SOURCES[source][0](path, model)


def _check_layers(sample: SampleRoutes, model: RoutedModel, index: int) -> None:
    """Refuse arrays that carry neither the MoE layers nor all layers of the model."""
    if sample.routes is None or sample.routes.ndim != 3:
        return
    layers = sample.routes.shape[1]
    if layers not in (len(model.moe_layers), model.num_layers):
        raise InstanceError(
            f"sample {index}: {layers} layers; the model has {model.num_layers}, of"
            f" which {len(model.moe_layers)} are MoE layers"
        )
