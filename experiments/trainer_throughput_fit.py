"""The cost model of the throughput study, from steps of one cell per rank.

    python -m experiments.trainer_throughput_fit \
        --config experiments/configs/trainer_throughput.toml --out runs/throughput/fit

Two ranks (ep 2) train cells that differ in tokens, in the lengths of their samples, and
in the copies that their experts receive, so that a fit can tell the costs apart. Two
tables of measurements are written for `rpopt calibrate` and fitted by its functions:
the CPU seconds of a step inside its experts, by copies, and outside, by tokens and
squared tokens. Run alone, it shows whether the widths give attention the share that it
has in the preset; the throughput study begins with it.

Axis letters: D ranks, L layers.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from experiments import tables
from experiments.config import read_config
from experiments.runner import Outcome, Run, run_all
from experiments.trainer_throughput_cases import (
    EXPERTS,
    LAYERS,
    TOP_K,
    VOCABULARY,
    Study,
    recorded_samples,
    step_settings,
)
from experiments.trainer_throughput_path import expert_s
from experiments.trainer_throughput_worker import Trial, measure
from rpopt.calibration import Fit, attention_share, cost_from_fits, fit
from rpopt.cost import CostModel
from rpopt.counter import generator
from rpopt.io.measurements import read_measurements
from rpopt.io.reference import data_dir
from rpopt.plans import Placement
from rpopt.presets import attention_share as preset_share
from rpopt.presets import model_shape
from rpopt.trainer.step import Sample

PRESET = "gpt-oss-20b"
RANKS = EP = 2
Row = dict[str, Any]
"""One measurement: a column each for seconds and features."""
# Tokens of a cell as a share of the cap, and the samples it is cut into.
_CELLS = [(share, pieces) for share in (1, 2, 3, 4) for pieces in (1, 4, 16)]
_KERNELS = (
    ("mixtral8x7b_h100_tp1_one_expert.csv.gz", 256),
    ("qwen3_30b_a3b_rtxpro6000_moe.csv", 256),
    ("qwen3_30b_a3b_rtxpro6000_attention.csv.gz", 512),
)
_KERNEL_TOP_K = 8


def fits_of(study: Study, out: Path) -> list[Fit]:
    """Return the fits of attention and experts; what they fit is written to `out`."""
    run = Run(
        problem="cells",
        instance=f"{RANKS} x {EP}",
        method="one cell per rank",
        seed=0,
        stop=f"{study.repeats} repeats",
        params=step_settings(study),
    )
    (record,) = run_all([run], solve, out=out, config=study)
    found = []
    for kind, rows in record["metrics"].items():
        path = out / f"{kind}.csv"
        tables.write_csv(path, rows)
        found.append(fit(read_measurements(path)))
    return found


def solve(run: Run) -> Outcome:
    """Measure the cells."""
    began_s = perf_counter()
    study = Study(**run.params)
    samples, trials = uneven_cells(study)
    timings = measure(
        trials, samples, study.shape, ep=EP, repeats=study.repeats, seed=run.seed
    )
    attention, experts = [], []
    for t, trial in enumerate(trials):
        copies_D = received_copies(trial, samples)
        for rank, (cell,) in enumerate(trial.cells):
            steps = [ranks[t][rank] for ranks in timings]
            inside_s = statistics.median(expert_s(step, LAYERS, 1) for step in steps)
            whole_s = statistics.median(step.cpu_C.sum() for step in steps)
            lengths = [samples[i].length for i in cell]
            attention.append(
                {
                    "seconds": float(whole_s - inside_s),
                    "tokens": sum(lengths),
                    "tokens_squared": sum(length**2 for length in lengths),
                }
            )
            experts.append({"seconds": float(inside_s), "copies": int(copies_D[rank])})
    return Outcome(
        instance_digest="",
        objective=None,
        upper=None,
        lower=None,
        feasible=True,
        termination="done",
        runtime_s=perf_counter() - began_s,
        metrics={"attention": attention, "experts": experts},
    )


def kernel_fits() -> list[Fit]:
    """Return the fits of the public kernel times, as docs/calibration.md has them."""
    folder = data_dir() / "kernel-times-llmservingsim"
    return [
        fit(
            read_measurements(folder / name, top_k=_KERNEL_TOP_K, min_tokens=min_tokens)
        )
        for name, min_tokens in _KERNELS
    ]


def rows_of(fits: Sequence[Fit]) -> list[Row]:
    """Return one table row per fit."""
    return [
        {
            "measurements of": fitted.name.partition(".")[0],
            "count": fitted.num_measurements,
            "fixed, µs": 1e6 * fitted.coefficients["fixed"],
            "c1, ns": 1e9 * fitted.coefficients["tokens"],
            "c2, ns": 1e9 * fitted.coefficients["tokens_squared"],
            "expert copy, ns": 1e9 * fitted.coefficients["copies"],
            "active expert, ns": 1e9 * fitted.coefficients["activated"],
            "median error": f"{fitted.median_error:.1%}",
            "R²": f"{fitted.r_squared:.3f}",
        }
        for fitted in fits
    ]


def uneven_cells(study: Study) -> tuple[list[Sample], list[Trial]]:
    """Return cells of recorded tokens; the ranks' cells of a trial differ in size."""
    pool = np.concatenate([s.routes_TLK for s in recorded_samples(study, seed=0)])
    rng = generator(0)
    identity = Placement.identity(LAYERS, EXPERTS, EP)
    samples: list[Sample] = []
    trials = []
    for at, (share, pieces) in enumerate(_CELLS):
        other = _CELLS[(at + 5) % len(_CELLS)]
        cells = []
        for part, count in ((share, pieces), other):
            length = study.token_cap * part // 4 // count
            cells.append([list(range(len(samples), len(samples) + count))])
            for _ in range(count):
                rows = (rng.integers(len(pool)) + np.arange(length)) % len(pool)
                samples.append(
                    Sample(
                        tokens=rng.integers(VOCABULARY, size=length + 1),
                        routes_TLK=pool[rows],
                        weight_T=np.full(length, 1 / study.token_cap),
                    )
                )
        trials.append(Trial(name=str(at), placement=identity, cells=cells))
    return samples, trials


def received_copies(trial: Trial, samples: Sequence[Sample]) -> np.ndarray:
    """Return the copies that each rank's experts receive, over all layers, [D]."""
    routes = [samples[i].routes_TLK for (cell,) in trial.cells for i in cell]
    rank_of = np.concatenate(routes) // (EXPERTS // EP)
    return np.bincount(rank_of.ravel(), minlength=EP)


def shares(study: Study, cost: CostModel) -> list[Row]:
    """Return the attention share by the fit, beside the preset's, at mean lengths."""
    windows = [recorded_samples(study, seed) for seed in range(study.windows)]
    lengths = [sample.length for window in windows for sample in window]
    scaled = round(statistics.fmean(lengths))
    full = scaled * study.length_divisor
    own = attention_share(
        cost, length_tokens=scaled, num_moe_layers=LAYERS, top_k=TOP_K
    )
    shape = model_shape(PRESET)
    return [
        {
            "mean length, tokens": scaled,
            "attention share": f"{own:.3f}",
            f"{PRESET} at {scaled}": f"{preset_share(shape, scaled):.3f}",
            f"{PRESET} at {full}": f"{preset_share(shape, full):.3f}",
        }
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    study = read_config(args.config, Study)
    fits = fits_of(study, args.out)
    cost = cost_from_fits(fits, name="fitted")
    for name, rows in (("fit", rows_of(fits)), ("share", shares(study, cost))):
        tables.write_csv(args.out / f"{name}.csv", rows)
        print(tables.markdown(args.out / f"{name}.csv"), end="\n\n")


if __name__ == "__main__":
    main()
