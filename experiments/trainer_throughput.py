"""What rerouting and packing gain in real training steps, on recorded routes.

    python -m experiments.trainer_throughput \
        --config experiments/configs/trainer_throughput.toml --out runs/throughput

First the cost model is fitted to steps of this trainer (`trainer_throughput_fit`).
Then every case trains its windows by four methods (`trainer_throughput_cases`) in real
gloo processes (`trainer_throughput_worker`), and the seconds of each step follow from
the wall clock or the critical path (`trainer_throughput_path`). A run that is broken
off goes on where it stopped. docs/throughput.md discusses the results.
"""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments import trainer_throughput_fit as fitting
from experiments import trainer_throughput_table as results
from experiments.config import read_config
from experiments.runner import Outcome, Run, run_all
from experiments.trainer_throughput_cases import (
    LAYERS,
    TOP_K,
    Method,
    Study,
    methods_of,
    recorded_samples,
    topology,
    window_of,
)
from experiments.trainer_throughput_path import (
    balanced_s,
    critical_path_s,
    expert_s,
    typical,
    wall_s,
)
from experiments.trainer_throughput_worker import Timings, Trial, measure
from rpopt.calibration import attention_share, cost_from_fits
from rpopt.cost import AttentionClass, CostModel
from rpopt.presets import attention_share as preset_share
from rpopt.presets import model_shape

PRESET = "gpt-oss-20b"


def solve_cells(run: Run) -> Outcome:
    """Measure cells of many sizes, for the fit."""
    began_s = perf_counter()
    measured = fitting.measure_cells(Study(**run.params))
    return _outcome("", began_s, measured)


def solve_window(run: Run) -> Outcome:
    """Train one window by every method."""
    began_s = perf_counter()
    study, cost = Study(**run.params["study"]), _cost(run.params["cost"])
    ranks = topology(run.instance)
    samples = recorded_samples(study, run.seed)
    window = window_of(samples)
    methods = methods_of(window, ranks, study, cost, run.seed)
    trials = [
        Trial(name=method.name, placement=method.placement, cells=method.cells)
        for method in methods
    ]
    timings = measure(
        trials,
        samples,
        study.shape,
        ep=ranks.ep,
        repeats=study.repeats,
        seed=run.seed,
    )
    metrics = {
        "tokens": int(window.length_N.sum()),
        "rows": methods[0].layout.num_rows,
        "is_unshared": ranks.dp <= (os.cpu_count() or 1),
        "methods": {
            method.name: _numbers(method, m, timings)
            for m, method in enumerate(methods)
        },
    }
    return _outcome(window.digest, began_s, metrics)


def _numbers(method: Method, at: int, timings: Timings) -> dict[str, Any]:
    """Return what a table needs of one method, by repeat."""
    steps = [repeat[at] for repeat in timings]
    inside = [
        sum(expert_s(rank, LAYERS, method.layout.num_rows) for rank in ranks)
        / sum(rank.cpu_C.sum() for rank in ranks)
        for ranks in steps
    ]
    return {
        "predicted_s": method.predicted_s,
        "bound_s": method.bound_s,
        "ideal_s": method.ideal_s,
        "typical_s": critical_path_s(typical(steps)),
        "path_s": [critical_path_s(ranks) for ranks in steps],
        "wall_s": [wall_s(ranks) for ranks in steps],
        "mean_s": [balanced_s(ranks) for ranks in steps],
        "expert_share": float(np.median(inside)),
    }


def _outcome(digest: str, began_s: float, metrics: dict[str, Any]) -> Outcome:
    return Outcome(
        instance_digest=digest,
        objective=None,
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=perf_counter() - began_s,
        metrics=metrics,
    )


def _cost(coefficients: Sequence[str]) -> CostModel:
    c1, c2, copy = coefficients
    attention = AttentionClass(c1=c1, c2=c2)
    return CostModel(
        attention=(attention,), expert_per_copy=copy, unit="s", name="fitted"
    )


def fitted(study: Study, out: Path) -> tuple[CostModel, list[dict[str, Any]]]:
    """Return the cost model of this trainer on this machine, and the table of fits."""
    run = Run(
        problem="cells",
        instance=f"{fitting.RANKS} x {fitting.EP}",
        method="one cell per rank",
        seed=0,
        stop=f"{study.repeats} repeats",
        params=dataclasses.asdict(study),
    )
    (record,) = run_all([run], solve_cells, out=out, config=study)
    fits = fitting.fits_of(record["metrics"], out)
    rows = fitting.rows_of([*fits, *fitting.kernel_fits()])
    return cost_from_fits(fits, name="fitted"), rows


def shares(study: Study, cost: CostModel) -> list[dict[str, Any]]:
    """Return the attention share by the fit, beside the preset's, at mean lengths."""
    lengths = [
        sample.length
        for seed in range(study.windows)
        for sample in recorded_samples(study, seed)
    ]
    mean = round(float(np.mean(lengths)))
    own = attention_share(cost, length_tokens=mean, num_moe_layers=LAYERS, top_k=TOP_K)
    full = mean * study.length_divisor
    return [
        {
            "mean length, tokens": mean,
            "attention share": f"{own:.3f}",
            f"{PRESET} at {mean}": f"{preset_share(model_shape(PRESET), mean):.3f}",
            f"{PRESET} at {full}": f"{preset_share(model_shape(PRESET), full):.3f}",
        }
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    study = read_config(args.config, Study)
    cost, fits = fitted(study, args.out / "fit")
    (attention,) = cost.attention
    coefficients = [str(c) for c in (attention.c1, attention.c2, cost.expert_per_copy)]
    runs = [
        Run(
            problem="throughput",
            instance=case,
            method="all, interleaved",
            seed=seed,
            stop=f"{study.repeats} repeats",
            params={"study": dataclasses.asdict(study), "cost": coefficients},
        )
        for seed in range(study.windows)
        for case in study.cases
    ]
    records = run_all(runs, solve_window, out=args.out, config=study)
    found = {
        "": results.published_form(records),
        "_prediction": results.predictions(records),
        "_limits": results.limits(records),
        "_fit": fits,
        "_share": shares(study, cost),
    }
    for suffix, rows in found.items():
        path = args.out / f"table{suffix}.csv"
        if study.table is not None:
            path = tables.RESULTS / f"{study.table}{suffix}.csv"
        tables.write_csv(path, rows)
        print(tables.markdown(path), end="\n\n")


if __name__ == "__main__":
    main()
