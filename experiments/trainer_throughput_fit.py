"""The cost model of the throughput study, from steps of one cell per rank.

Two ranks (ep 2) train cells that differ in tokens, in the lengths of their samples, and
in the copies that their experts receive, so that a fit can tell the costs apart. Two
tables of measurements are written for `rpopt calibrate` and fitted by its functions:
the CPU seconds of a step inside its experts, by copies, and outside, by tokens and
squared tokens.

Axis letters: D ranks, L layers.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import tables
from experiments.trainer_throughput_cases import (
    EXPERTS,
    LAYERS,
    VOCABULARY,
    Study,
    recorded_samples,
)
from experiments.trainer_throughput_path import expert_s
from experiments.trainer_throughput_worker import Trial, measure
from rpopt.calibration import Fit, fit
from rpopt.counter import generator
from rpopt.io.measurements import read_measurements
from rpopt.io.reference import data_dir
from rpopt.plans import Placement
from rpopt.trainer.step import Sample

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


def measure_cells(study: Study) -> dict[str, list[Row]]:
    """Return the measurements of attention and of experts."""
    samples, trials = _uneven_cells(study)
    timings = measure(
        trials, samples, study.shape, ep=EP, repeats=study.repeats, seed=0
    )
    attention, experts = [], []
    for t, trial in enumerate(trials):
        copies_D = _received(trial, samples)
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
    return {"attention": attention, "experts": experts}


def fits_of(measured: dict[str, list[Row]], out: Path) -> list[Fit]:
    """Write the measurements to `out` and fit them."""
    found = []
    for kind, rows in measured.items():
        path = out / f"{kind}.csv"
        tables.write_csv(path, rows)
        found.append(fit(read_measurements(path)))
    return found


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


def _uneven_cells(study: Study) -> tuple[list[Sample], list[Trial]]:
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


def _received(trial: Trial, samples: Sequence[Sample]) -> np.ndarray:
    """Return the copies that each rank's experts receive, over all layers, [D]."""
    routes = [samples[i].routes_TLK for (cell,) in trial.cells for i in cell]
    rank_of = np.concatenate(routes) // (EXPERTS // EP)
    return np.bincount(rank_of.ravel(), minlength=EP)
