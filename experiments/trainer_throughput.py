"""What rerouting and packing gain in a real training step, on replayed real routes.

    python -m experiments.trainer_throughput \
        --config experiments/configs/trainer_throughput_smoke.toml --out runs/throughput

Four methods train the same window, interleaved: the baseline (identity placement,
Karmarkar-Karp on tokens), rerouting only, packing only, and both, all under one cap and
number of rows. A case "8x4" has 8 single-threaded gloo processes and ep = 4.

With no more processes than cores, wall-clock tokens/s are measured. Otherwise ranks
share cores, and the step is a *critical path*: the CPU seconds of each rank between
collectives, the slowest rank of the shard each time, summed; then the slowest shard.
Both stand beside the cost model's prediction; its coefficients are fitted to CPU
seconds of uneven cells on the first case's processes.

Samples concatenate recorded generations, whole and in file order from a random start,
until a length is reached that is drawn from the reference windows' length distribution,
divided by `length_divisor`; the last generation is cut.

Axis letters: N samples, T tokens, L layers, K top-k, R repeats, D ranks, C collectives.
"""

import argparse
import dataclasses
import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tqdm import tqdm

from experiments import tables
from experiments.config import read_config
from rpopt.anneal import anneal
from rpopt.calibration import (
    Fit,
    Measurements,
    attention_share,
    cost_from_fits,
    fit,
)
from rpopt.cost import CostModel
from rpopt.counter import generator
from rpopt.io.reference import build_reference_like, data_dir
from rpopt.layout.baselines import token_karmarkar_karp
from rpopt.layout.evaluate import evaluate
from rpopt.packing.rows import certify_rows
from rpopt.planner import choose_placement
from rpopt.plans import Layout, Placement
from rpopt.presets import attention_share as preset_share
from rpopt.presets import model_shape
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import MaxSweeps
from rpopt.topology import Topology
from rpopt.trainer.model import Model
from rpopt.trainer.parallel import parallel
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.slots import PlacedSlots
from rpopt.trainer.step import Sample, train_step
from rpopt.window import Window

BASELINE, REROUTE, PACKING, BOTH = METHODS = (
    "baseline",
    "rerouting",
    "packing",
    "rerouting + packing",
)
COLLECTIVES_PER_LAYER = 5  # forward: counts, there, back; backward: back, there


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What to measure."""

    cases: tuple[str, ...]
    repeats: int
    samples_per_rank: int
    token_cap: int
    length_divisor: int
    seed: int
    sweeps: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    moe_intermediate: int
    table: str | None = None

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            vocab_size=64,
            hidden=self.hidden,
            num_layers=24,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            num_experts=32,
            top_k=4,
            moe_intermediate=self.moe_intermediate,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A placement and a layout, and J under the cost model."""

    name: str
    placement: Placement
    layout: Layout
    j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One step on one rank: wall seconds, and CPU seconds before each collective."""

    wall_s: float
    cpu_C: np.ndarray


def real_samples(study: Study, num_samples: int) -> list[Sample]:
    """Samples of the window, the same on every rank."""
    path = data_dir() / "moe-routing-gptoss20b" / "token_topk_subset.npz"
    with np.load(path) as archive:
        topk, offsets = archive["topk"], archive["offsets"].tolist()
    cap = study.token_cap * study.length_divisor
    drawn = build_reference_like(
        seed=study.seed, num_samples=num_samples, token_cap=cap
    )
    length_N = np.maximum(1, drawn.length_N // study.length_divisor).tolist()
    rng = generator(study.seed, 1)
    total = sum(length_N)
    window = []
    for length in length_N:
        start = offsets[rng.integers(len(offsets) - 1)]
        rows = (start + np.arange(length)) % len(topk)
        window.append(
            Sample(
                tokens=rng.integers(64, size=length + 1),
                routes_TLK=topk[rows],
                weight_T=np.full(length, 1 / total),
            )
        )
    return window


def window_of(samples: Sequence[Sample]) -> Window:
    demand = [
        np.stack([np.bincount(layer.ravel(), minlength=32) for layer in layers])
        for layers in (sample.routes_TLK.transpose(1, 0, 2) for sample in samples)
    ]
    lengths = [sample.length for sample in samples]
    return Window(length_N=np.array(lengths), demand_NLE=np.array(demand), top_k=4)


def methods_of(
    window: Window, topology: Topology, study: Study, cost: CostModel
) -> list[Method]:
    """The four methods, on one number of rows."""
    rules = PackingRules(token_cap=study.token_cap)
    problems = WindowProblems(window, topology, rules, cost)
    num_rows = certify_rows(problems.packing).upper
    identity = Placement.identity(24, 32, topology.ep)
    placed = choose_placement(problems, None, study.seed)
    assert placed is not None
    plain, rerouted = (problems.layout(p, num_rows) for p in (identity, placed))
    dealt = token_karmarkar_karp(plain)
    assert dealt is not None
    stop = MaxSweeps(study.sweeps)
    packed, both = (
        anneal(i, starts=[dealt], stop=stop, seed=study.seed).best
        for i in (plain, rerouted)
    )
    chosen = (
        (BASELINE, identity, plain, dealt),
        (REROUTE, placed, rerouted, dealt),
        (PACKING, identity, plain, packed),
        (BOTH, placed, rerouted, both),
    )
    return [
        Method(name=n, placement=p, layout=x, j=evaluate(i, x).j)
        for n, p, i, x in chosen
    ]


class Recorder:
    """CPU seconds of this thread before each collective; a collective itself is free.

    Backward passes on the CPU run in the calling thread.
    """

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self._since = time.thread_time()
        for name in ("all_to_all_single", "all_reduce", "all_gather_object"):
            setattr(dist, name, self._timed(getattr(dist, name)))

    def restart(self) -> None:
        self.cpu, self._since = [], time.thread_time()

    def stop(self) -> np.ndarray:
        self.cpu.append(time.thread_time() - self._since)
        return np.array(self.cpu)

    def _timed(self, collective: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.cpu.append(time.thread_time() - self._since)
            result = collective(*args, **kwargs)
            self._since = time.thread_time()
            return result

        return call


def run_rank(
    rank: int,
    world: int,
    ep: int,
    port: int,
    study: Study,
    methods: Sequence[Method],
    queue: Any,
) -> None:
    """Train every method in turn, one unmeasured round first."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    groups = parallel(ep)
    samples = real_samples(study, study.samples_per_rank * world)
    recorder = Recorder()
    prepared = []
    for method in methods:
        slots = PlacedSlots(method.placement, groups.ep_rank)
        model = Model(study.shape, slots, seed=study.seed, group=groups.ep_group)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        prepared.append((model, slots, optimizer, cells_of(method.layout, rank)))
    rounds = []
    for _ in tqdm(range(1 + study.repeats), disable=None if rank == 0 else True):
        timings = []
        for model, slots, optimizer, cells in prepared:
            own = [[samples[i] for i in cell] for cell in cells]
            dist.barrier()
            recorder.restart()
            began_s = time.perf_counter()
            train_step(model, slots, optimizer, own, groups)
            wall_s = time.perf_counter() - began_s
            timings.append(Timing(wall_s=wall_s, cpu_C=recorder.stop()))
        rounds.append(timings)
    queue.put((rank, rounds[1:]))
    dist.barrier()
    dist.destroy_process_group()


def cells_of(layout: Layout, rank: int) -> list[list[int]]:
    return [
        np.flatnonzero((layout.row_I == row) & (layout.rank_I == rank)).tolist()
        for row in range(layout.num_rows)
    ]


def run_case(case: str, study: Study, methods: Sequence[Method]) -> Any:
    """Timings by rank, repeat and method."""
    world, ep = sizes(case)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    args = (world, ep, port, study, methods, queue)
    processes = mp.spawn(run_rank, args=args, nprocs=world, join=False)
    results = {}
    while len(results) < world:
        if queue.empty():
            processes.join(timeout=0.2)  # raises what a rank raised
        else:
            rank, rounds = queue.get()
            results[rank] = rounds
    while not processes.join():
        pass
    return [results[rank] for rank in range(world)]


def sizes(case: str) -> tuple[int, int]:
    world, ep = case.split("x")
    return int(world), int(ep)


def critical_path_s(cpu_DC: np.ndarray, ep: int) -> float:
    """Sum of the slowest rank before each collective, of the slowest shard."""
    by_shard = cpu_DC.reshape(-1, ep, cpu_DC.shape[1])
    return float(by_shard.max(axis=1).sum(axis=1).max())


def uneven_cells(case: str, study: Study) -> Method:
    """Eight rows of cells of very different sizes: a fit can tell costs apart."""
    world, ep = sizes(case)
    count, num_cells = study.samples_per_rank * world, 8 * world
    rng = generator(study.seed, 2)
    weights = np.arange(1, num_cells + 1)
    cell_I = rng.choice(num_cells, size=count, p=weights / weights.sum())
    cell_I[rng.permutation(count)[:num_cells]] = np.arange(num_cells)  # none empty
    layout = Layout(row_I=cell_I // world, rank_I=cell_I % world, num_rows=8)
    identity = Placement.identity(24, 32, ep)
    return Method(name=BASELINE, placement=identity, layout=layout, j=1.0)


def calibrate(case: str, study: Study, method: Method, results: Any) -> tuple[Fit, Fit]:
    """Fit attention and expert seconds to the cells of a method."""
    world, ep = sizes(case)
    samples = real_samples(study, study.samples_per_rank * world)
    rank_E = method.placement.rank_LE
    attention, experts = [], []
    for rank in range(world):
        cpu_C = np.median(
            [r[METHODS.index(method.name)].cpu_C for r in results[rank]], 0
        )
        for row, cell in enumerate(cells_of(method.layout, rank)):
            dense_s, expert_s = split_cell(cpu_C, row)
            lengths = np.array([samples[i].length for i in cell])
            attention.append((dense_s, lengths.sum(), (lengths**2).sum()))
            copies = 0
            for peer in range(rank // ep * ep, rank // ep * ep + ep):
                for i in cells_of(method.layout, peer)[row]:
                    routes = samples[i].routes_TLK
                    for layer in range(24):
                        hit = rank_E[layer][routes[:, layer]] == rank % ep
                        copies += int(hit.sum())
            experts.append((expert_s, copies))
    dense, expert = np.array(attention, dtype=float), np.array(experts, dtype=float)
    features = {"tokens": dense[:, 1], "tokens_squared": dense[:, 2]}
    return (
        fit(Measurements(seconds_M=dense[:, 0], features=features, name="attention")),
        fit(
            Measurements(
                seconds_M=expert[:, 0],
                features={"copies": expert[:, 1]},
                name="experts",
            )
        ),
    )


def split_cell(cpu_C: np.ndarray, row: int) -> tuple[float, float]:
    """CPU seconds of a cell outside and inside the experts.

    The backward pass of the first attention layer, which no collective ends, counts
    with the next cell.
    """
    per_cell = 24 * COLLECTIVES_PER_LAYER
    first = 2 + row * per_cell  # after the check of the cells and the sum of loads
    part = cpu_C[first : first + per_cell]
    expert_s = part[2 : 24 * 3 : 3].sum() + part[24 * 3 + 1 :: 2].sum()
    return float(part.sum() - expert_s), float(expert_s)


def rows_of(case: str, study: Study, methods: Sequence[Method], results: Any) -> Any:
    """Table rows: tokens/s of each method, gains, and the prediction beside them."""
    world, ep = sizes(case)
    samples = real_samples(study, study.samples_per_rank * world)
    tokens = sum(sample.length for sample in samples)
    is_wall = world <= (os.cpu_count() or 1)
    seconds: dict[str, list[float]] = {}
    for m, method in enumerate(methods):
        seconds[method.name] = []
        for repeat in range(study.repeats):
            timings = [results[rank][repeat][m] for rank in range(world)]
            cpu_DC = np.stack([timing.cpu_C for timing in timings])
            wall_s = max(timing.wall_s for timing in timings)
            path_s = critical_path_s(cpu_DC, ep)
            seconds[method.name].append(wall_s if is_wall else path_s)
    rows = []
    for method in methods:
        gains = [
            100 * (base / own - 1)
            for base, own in zip(seconds[BASELINE], seconds[method.name], strict=True)
        ]
        gain = statistics.median(gains)
        predicted = 100 * (methods[0].j / method.j - 1)
        rows.append(
            {
                "dp, ep": f"{world}, {ep}",
                "measured": "wall clock" if is_wall else "critical path",
                "rows": method.layout.num_rows,
                "method": method.name,
                "J": f"{method.j:.4f}",
                "tokens/s": round(tokens / statistics.median(seconds[method.name])),
                "gain": f"{gain:+.2f} %",
                "min to max": f"{min(gains):+.2f} to {max(gains):+.2f} %",
                "predicted": f"{predicted:+.2f} %",
                "error": f"{predicted - gain:+.2f} points",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_config(args.config, Study)
    args.out.mkdir(parents=True, exist_ok=True)
    first = study.cases[0]
    world, ep = sizes(first)
    trial = uneven_cells(first, study)
    measured = run_case(first, dataclasses.replace(study, repeats=3), [trial])
    fits = calibrate(first, study, trial, measured)
    cost = cost_from_fits(fits, name="fitted")
    rows = []
    for case in study.cases:
        world, ep = sizes(case)
        window = window_of(real_samples(study, study.samples_per_rank * world))
        methods = methods_of(window, Topology(dp=world, ep=ep), study, cost)
        rows += rows_of(case, study, methods, run_case(case, study, methods))
    path = args.out / "table.csv"
    if study.table is not None:
        path = tables.RESULTS / f"{study.table}.csv"
    tables.write_csv(path, rows)
    print(tables.markdown(path))
    mean = round(float(window.length_N.mean()))
    share = attention_share(cost, length_tokens=mean, num_moe_layers=24, top_k=4)
    preset = preset_share(model_shape("gpt-oss-20b"), mean)
    for found in fits:
        print(found)
    print(f"attention share at {mean} tokens: {share:.3f}; gpt-oss-20b: {preset:.3f}")


if __name__ == "__main__":
    main()
