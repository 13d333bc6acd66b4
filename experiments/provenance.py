"""Where results come from: commit, versions and the kind of machine, never its name."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "rpopt",
    "highspy",
    "networkx",
    "numba",
    "numpy",
    "ortools",
    "pyomo",
    "pyscipopt",
    "scipy",
    "torch",
)


def provenance() -> dict[str, Any]:
    """Return what each record says of its origin."""
    return {"commit": _commit(), "dirty": _dirty(), "versions": _versions()}


def machine() -> dict[str, Any]:
    """Return the system, the CPU's architecture and kind, and how many we may use."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": _cpu(),
        "num_cpus": _num_cpus(),
    }


def _git(*arguments: str) -> str | None:
    """Return what git says, None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _commit() -> str | None:
    return _git("rev-parse", "--verify", "--quiet", "HEAD")


def _dirty() -> bool | None:
    status = _git("status", "--porcelain")
    return None if status is None else bool(status)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
