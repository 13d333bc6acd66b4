"""Peers of the certifier on bin packing: OR-Tools CP-SAT and PackingSolver.

CP-SAT gets the assignment model, the volume bound as a constraint and the packing of
best-fit decreasing as a hint.
PackingSolver runs in a Python of its own, named by PACKINGSOLVER_PYTHON.

Axis letters: I items, K cells.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from ortools.sat.python import cp_model

from rpopt.errors import InstanceError
from rpopt.packing.bounds import l1
from rpopt.packing.heuristics import best_fit_decreasing
from rpopt.packing.instance import PackingInstance

_WORKERS = 8  # fewer would leave out parts of the portfolio
_PYTHON = "PACKINGSOLVER_PYTHON"
_GRACE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a peer claims; its bound is not checked."""

    lower: int
    upper: int
    runtime_s: float


def cp_sat(instance: PackingInstance, *, limit_s: float, seed: int) -> Answer:
    """Pack into the fewest cells from the start of best-fit decreasing."""
    began_s = perf_counter()
    start = best_fit_decreasing(instance)
    cells, cap = start.num_cells, instance.capacity
    model = cp_model.CpModel()
    used_K = [model.new_bool_var(f"used {k}") for k in range(cells)]
    cell_IK = []
    for item, weight in enumerate(instance.weight_I.tolist()):
        row = [model.new_bool_var(f"{item} in {k}") for k in range(cells)]
        model.add_exactly_one(row)
        cell_IK.append((weight, row))
    for k, used in enumerate(used_K):
        model.add(sum(weight * row[k] for weight, row in cell_IK) <= cap * used)
        if k:
            model.add_implication(used, used_K[k - 1])
    for (_, row), cell in zip(cell_IK, start.cell_I.tolist(), strict=True):
        for k, x in enumerate(row):
            model.add_hint(x, k == cell)
    for used in used_K:
        model.add_hint(used, True)
    floor = l1(instance).value
    model.add(sum(used_K) >= floor)
    model.minimize(sum(used_K))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = _WORKERS
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    upper = round(solver.objective_value) if found else cells
    return Answer(
        lower=max(floor, round(solver.best_objective_bound)),
        upper=min(cells, upper),
        runtime_s=perf_counter() - began_s,
    )


def packing_solver(instance: PackingInstance, *, limit_s: float, seed: int) -> Answer:
    """Pack into the fewest cells with PackingSolver's own choice of methods."""
    if _PYTHON not in os.environ:
        raise InstanceError(f"set {_PYTHON} to an interpreter with packingsolver")
    began_s = perf_counter()
    task = {
        "weights": instance.weight_I.tolist(),
        "capacity": instance.capacity,
        "limit_s": limit_s,
    }
    script = Path(__file__).with_name("packing_solver.py")
    done = subprocess.run(
        [os.environ[_PYTHON], str(script)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s + _GRACE_S,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    return Answer(**answer, runtime_s=perf_counter() - began_s)


PEERS: dict[str, Callable[..., Answer]] = {
    "CP-SAT": cp_sat,
    "PackingSolver": packing_solver,
}
