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
    Method,
    Study,
    methods_of,
    recorded_samples,
    step_settings,
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
from rpopt.calibration import cost_from_fits
from rpopt.cost import AttentionClass, CostModel


def solve_window(run: Run) -> Outcome:
    """Train one window by every method."""
    began_s = perf_counter()
    study, cost = Study(**run.params["study"]), _read(run.params["cost"])
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
    return Outcome(
        instance_digest=window.digest,
        objective=None,
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=perf_counter() - began_s,
        metrics=metrics,
    )


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


def _written(cost: CostModel) -> list[str]:
    """Return the exact coefficients of a fitted cost model, for a record."""
    (attention,) = cost.attention
    return [str(c) for c in (attention.c1, attention.c2, cost.expert_per_copy)]


def _read(coefficients: Sequence[str]) -> CostModel:
    c1, c2, copy = coefficients
    attention = (AttentionClass(c1=c1, c2=c2),)
    return CostModel(attention=attention, expert_per_copy=copy, unit="s", name="fitted")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    study = read_config(args.config, Study)
    fits = fitting.fits_of(study, args.out / "fit")
    cost = cost_from_fits(fits, name="fitted")
    runs = [
        Run(
            problem="throughput",
            instance=case,
            method="all, interleaved",
            seed=seed,
            stop=f"{study.repeats} repeats",
            params={"study": step_settings(study), "cost": _written(cost)},
        )
        for seed in range(study.windows)
        for case in study.cases
    ]
    records = run_all(runs, solve_window, out=args.out, config=study)
    found = {
        "": results.published_form(records),
        "_prediction": results.predictions(records),
        "_limits": results.limits(records),
        "_fit": fitting.rows_of([*fits, *fitting.kernel_fits()]),
        "_share": fitting.shares(study, cost),
    }
    for suffix, rows in found.items():
        path = args.out / f"table{suffix}.csv"
        if study.table is not None:
            path = tables.RESULTS / f"{study.table}{suffix}.csv"
        tables.write_csv(path, rows)
        print(tables.markdown(path), end="\n\n")


if __name__ == "__main__":
    main()
