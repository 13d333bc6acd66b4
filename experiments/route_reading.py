"""How fast routed-expert ids become histograms: our counter, NumPy loops, whole files.

python -m experiments.route_reading \
    --config experiments/configs/route_reading.toml --out runs/route_reading

MB of raw ids per second of processor time of one thread, so a busy machine changes it
less than it changes the clock. The loops are what one writes by hand, layer by layer
with `numpy.bincount`: one without any check, and two with the checks of the counter
(rows of fillers, range of the ids, an expert twice in one token), which differ in how
they find repeated experts; the faster of the two counts.

Axis letters: T tokens, L layers, K top-k, E experts.
"""

import argparse
import base64
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, RunRecord, run_all
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers import read_window
from rpopt.io.routes import SampleRoutes, window_from_routes
from rpopt.records import Int64Array, IntArray

Loop = Callable[[IntArray, int], Int64Array]
Params = Mapping[str, Any]
READING = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Cases [T, L, K, E] of every integer type; `tokens` in all, `repeats` times."""

    dtypes: tuple[str, ...]
    cases: tuple[tuple[int, ...], ...]
    tokens: int
    repeats: int
    table: str | None = None


def draw(params: Params) -> list[IntArray]:
    """Return the routes [T, L, K] of samples that have `tokens` tokens together."""
    rng = np.random.default_rng(0)
    tokens, layers, top_k, experts = params["case"]
    scores = rng.random((512, layers, experts), dtype=np.float32)
    rows = np.argsort(scores, axis=2)[:, :, :top_k].astype(params["dtype"])
    return [
        np.ascontiguousarray(rows[rng.integers(0, len(rows), tokens)])
        for _ in range(max(1, params["tokens"] // tokens))
    ]


def plain_loop(routes: IntArray, num_experts: int) -> Int64Array:
    """Count without looking."""
    return np.array(
        [
            np.bincount(routes[:, layer].ravel(), minlength=num_experts)
            for layer in range(routes.shape[1])
        ]
    )


def sorting_loop(routes: IntArray, num_experts: int) -> Int64Array:
    """Find repeated experts by sorting the ids of every token."""

    def repeats(ids_TK: IntArray) -> bool:
        in_order = np.sort(ids_TK, axis=1)
        return bool((in_order[:, 1:] == in_order[:, :-1]).any())

    return _checked(routes, num_experts, repeats)


def pairwise_loop(routes: IntArray, num_experts: int) -> Int64Array:
    """Find repeated experts by comparing columns."""

    def repeats(ids_TK: IntArray) -> bool:
        columns = range(1, ids_TK.shape[1])
        return any(bool((ids_TK[:, :k] == ids_TK[:, [k]]).any()) for k in columns)

    return _checked(routes, num_experts, repeats)


def _checked(
    routes: IntArray, num_experts: int, repeats: Callable[[IntArray], bool]
) -> Int64Array:
    if routes.dtype.kind == "i":
        missing = (routes == -1).all(axis=(1, 2))
        if missing.any():
            routes = routes[~missing]
    count_LE = np.zeros((routes.shape[1], num_experts), dtype=np.int64)
    for layer in range(routes.shape[1]):
        ids_TK = routes[:, layer]
        if ids_TK.min() < 0 or ids_TK.max() >= num_experts or repeats(ids_TK):
            raise ValueError(f"bad ids in layer {layer}")
        count_LE[layer] = np.bincount(ids_TK.ravel(), minlength=num_experts)
    return count_LE


LOOPS: dict[str, Loop] = {
    "plain": plain_loop,
    "sorting": sorting_loop,
    "pairwise": pairwise_loop,
}


def counter(samples: Sequence[IntArray], params: Params) -> Int64Array:
    """Count with what all readers use; the last row of a sample is never counted."""
    window = window_from_routes(
        [SampleRoutes(length_tokens=len(r), routes=r) for r in samples],
        top_k=params["case"][2],
        num_experts=params["case"][3],
    )
    assert window.demand_NLE is not None
    return window.demand_NLE.sum(axis=0)


def _loop(loop: Loop) -> Callable[[Sequence[IntArray], Params], Int64Array]:
    def count(samples: Sequence[IntArray], params: Params) -> Int64Array:
        return sum(
            (loop(routes[:-1], params["case"][3]) for routes in samples),
            np.zeros((), dtype=np.int64),
        )

    return count


COUNTERS = {"rpopt": counter, **{name: _loop(loop) for name, loop in LOOPS.items()}}


def save_slime(path: Path, samples: Sequence[IntArray]) -> None:
    import torch

    rows = [
        {"tokens": [0] * len(r), "rollout_routed_experts": torch.tensor(r[:-1])}
        for r in samples
    ]
    torch.save({"rollout_id": 0, "samples": rows}, path)


def save_prime_rl(path: Path, samples: Sequence[IntArray]) -> None:
    import msgpack

    batches: list[list[Any]] = []
    for r in samples:
        batch: list[Any] = [None] * 11
        batch[0], batch[8] = [0] * len(r), [len(r)]
        batch[10] = [r.tobytes(), list(r.shape), str(r.dtype)]
        batches.append(batch)
    path.write_bytes(msgpack.packb(batches))


def save_nemo_rl(path: Path, samples: Sequence[IntArray]) -> None:
    with path.open("w") as file:
        for r in samples:
            shape = "x".join(map(str, r.shape))
            text = base64.b64encode(r.tobytes()).decode()
            envelope = f"nrlre1:{r.dtype}:{shape}:{text}"
            line = {"input_lengths": len(r), "routed_experts": envelope}
            file.write(json.dumps(line) + "\n")


def save_sglang(path: Path, samples: Sequence[IntArray]) -> None:
    with path.open("w") as file:
        for r in samples:
            meta = {"prompt_tokens": 1, "completion_tokens": len(r) - 1}
            text = base64.b64encode(r[:-1].tobytes()).decode()
            line = {"meta_info": {**meta, "routed_experts": text}}
            file.write(json.dumps(line) + "\n")


FILES: dict[str, Callable[[Path, Sequence[IntArray]], None]] = {
    "slime": save_slime,
    "prime-rl": save_prime_rl,
    "nemo-rl": save_nemo_rl,
    "sglang": save_sglang,
}


def solve(run: Run) -> Outcome:
    """Measure one case; the objective is the rate of our side in MB/s."""
    params, samples = run.params, draw(run.params)
    if run.method == READING:
        rates = reading_rates(run.instance, samples, params)
    else:
        rates = counting_rates(samples, params)
    name = next(iter(rates))
    return Outcome(
        instance_digest="",
        objective=statistics.median(rates[name]),
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=process_time(),
        metrics={f"{n}_{i}": v for n in rates for i, v in enumerate(rates[n])},
    )


def counting_rates(
    samples: Sequence[IntArray], params: Params
) -> dict[str, list[float]]:
    """Return the rates of our counter and the loops, measured in turns."""
    expected = counter(samples, params)  # compiles
    rates: dict[str, list[float]] = {name: [] for name in COUNTERS}
    for _ in range(params["repeats"]):
        for name, count in COUNTERS.items():
            began_s = process_time()
            found = count(samples, params)
            rates[name].append(_megabytes(samples) / (process_time() - began_s))
            assert np.array_equal(found, expected)
    return rates


def reading_rates(
    source: str, samples: Sequence[IntArray], params: Params
) -> dict[str, list[float]]:
    """Return the rate from a file, in the page cache, to a window."""
    _, layers, top_k, experts = params["case"]
    model = RoutedModel(
        num_layers=layers,
        moe_layers=tuple(range(layers)),
        num_experts=experts,
        top_k=top_k,
    )
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        FILES[source](path, samples)
        read_window(source, [path], model, progress=False)  # compiles
        for _ in range(params["repeats"]):
            began_s = process_time()
            read_window(source, [path], model, progress=False)
            rates.append(_megabytes(samples) / (process_time() - began_s))
    return {"rpopt": rates}


def _megabytes(samples: Sequence[IntArray]) -> float:
    return sum(r.nbytes for r in samples) / 1e6


def runs(study: Study) -> list[Run]:
    """Return the cases in memory, then a whole file of every source."""
    size = {"tokens": study.tokens, "repeats": study.repeats}

    def run(instance: str, method: str, dtype: str, case: tuple[int, ...]) -> Run:
        params = {**size, "dtype": dtype, "case": list(case)}
        return Run(
            problem="reading",
            instance=instance,
            method=method,
            seed=0,
            stop="none",
            params=params,
        )

    counted = [
        run(f"{dtype} {list(case)}", "count", dtype, case)
        for dtype in study.dtypes
        for case in study.cases
        if case[3] <= np.iinfo(dtype).max + 1
    ]
    read = [run(source, READING, "int32", study.cases[0]) for source in FILES]
    return counted + read


def counting_table(records: list[RunRecord]) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        if record["method"] == READING:
            continue
        rate = {name: _values(record, name) for name in COUNTERS}
        checked = max(("sorting", "pairwise"), key=lambda n: statistics.median(rate[n]))
        tokens, layers, top_k, experts = record["params"]["case"]
        rows.append(
            {
                "type": record["params"]["dtype"],
                "T": tokens,
                "L": layers,
                "K": top_k,
                "E": experts,
                "rpopt MB/s": round(statistics.median(rate["rpopt"])),
                "lowest": round(min(rate["rpopt"])),
                "loop with checks": round(statistics.median(rate[checked])),
                "faster by": _times(rate["rpopt"], rate[checked]),
                "repeats found by": checked,
                "loop without": round(statistics.median(rate["plain"])),
                "faster than that by": _times(rate["rpopt"], rate["plain"]),
            }
        )
    return rows


def reading_table(records: list[RunRecord]) -> list[dict[str, Any]]:
    return [
        {
            "file": record["instance"],
            "MB/s of routes (median)": round(record["objective"]),
            "lowest": round(min(_values(record, "rpopt"))),
            "repeats": record["params"]["repeats"],
        }
        for record in records
        if record["method"] == READING
    ]


def _values(record: RunRecord, name: str) -> list[float]:
    count = record["params"]["repeats"]
    return [record["metrics"][f"{name}_{i}"] for i in range(count)]


def _times(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median of the ratios of runs that followed each other."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.1f} x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    records = run_all(runs(study), solve, out=args.out, config=study)
    for name, rows in (
        ("count", counting_table(records)),
        ("files", reading_table(records)),
    ):
        path = args.out / f"{name}.csv"
        if study.table is not None:
            path = tables.RESULTS / f"{study.table}_{name}.csv"
        tables.write_csv(path, rows)
        print(tables.markdown(path))


if __name__ == "__main__":
    main()
