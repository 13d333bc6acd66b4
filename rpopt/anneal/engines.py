"""Which engine runs, how large its population is, and how it is made.

Engines are imported when they are asked for: importing rpopt loads NumPy only.
"""

import numpy as np

from rpopt import counter
from rpopt.anneal.moves import STREAM
from rpopt.anneal.run import LocalEngine
from rpopt.anneal.schedule import Limits
from rpopt.anneal.tables import Geometry, Tables
from rpopt.errors import InstanceError
from rpopt.records import IntArray

_NAMES = ("auto", "compiled", "torch")
_SMALLEST, _LARGEST = 2, 64
_SWEEPS_PER_REPLICA = 10_000
_MOVES_PER_S = 2.0e6  # of one thread, roughly; only the population depends on it
_TORCH_POPULATION = 256
_SWEEPS_POPULATION = 8


def choose_engine(name: str, device: str) -> str:
    """Return "compiled" or "torch": "auto" is compiled on the CPU, torch elsewhere.

    Raises
    ------
    InstanceError
        For an unknown engine, or one that cannot run here; never a silent other one.
    """
    if name not in _NAMES:
        raise InstanceError(f"engine = {name!r}; use one of {', '.join(_NAMES)}")
    if name == "auto":
        name = "compiled" if device == "cpu" else "torch"
    if name == "compiled" and device != "cpu":
        raise InstanceError(
            f"the compiled engine runs on the CPU, not on {device!r}; use engine ="
            " 'torch' there"
        )
    return name


def load_engine(name: str, device: str, *, wide: bool) -> None:
    """Import an engine's code, so that its absence is an error at once.

    Raises
    ------
    InstanceError
        When a package or the device is missing; the message names the alternative.
    """
    other, package = ("torch", "numba") if name == "compiled" else ("compiled", "torch")
    try:
        if name == "compiled":
            from rpopt.anneal import compiled

            compiled.load(wide=wide)
        else:
            from rpopt.anneal import torch_engine

            torch_engine.load(device)
    except (ImportError, RuntimeError, AssertionError) as error:
        raise InstanceError(
            f"the {name} engine cannot run on {device!r} ({error}); install {package}"
            f" for it, or use engine = {other!r} on the CPU"
        ) from error


def choose_population(tables: Tables, limits: Limits, name: str, threads: int) -> int:
    """Return a population for a budget.

    A limit of sweeps alone gives the same population on every engine. Under a time
    limit a compiled population grows with the sweeps that the time is likely to hold.
    """
    if limits.seconds_s is None:
        return _SWEEPS_POPULATION
    if name == "torch":
        return _TORCH_POPULATION
    sweeps = limits.seconds_s * threads * _MOVES_PER_S / tables.num_items
    size = max(_SMALLEST, threads)
    while size < _LARGEST and sweeps >= 2 * size * _SWEEPS_PER_REPLICA:
        size *= 2
    return size


def make_engine(
    name: str,
    geometry: Geometry,
    start_AI: IntArray,
    slots: range,
    seed: int,
    device: str,
    threads: int,
) -> LocalEngine:
    """Return the replicas of some slots of a population; they take the starts in turn.

    A replica's randomness and start depend on its slot in the whole population alone.
    """
    keys = [counter.key(seed, STREAM, slot) for slot in slots]
    key_B = np.array(keys, dtype=np.uint64)
    start_B = np.array(slots, dtype=np.int64) % len(start_AI)
    if name == "compiled":
        from rpopt.anneal.compiled import CompiledEngine

        return CompiledEngine(geometry, start_AI, start_B, key_B, threads=threads)
    from rpopt.anneal.torch_engine import TorchEngine

    return TorchEngine(geometry, start_AI, start_B, key_B, device=device)
