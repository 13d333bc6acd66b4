"""Plans of Mixture-of-Experts RL training steps.

Importing rpopt loads NumPy only; what needs more is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rpopt.certificate import Bound, Certificate
from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import (
    CertificateError,
    FileFormatError,
    InfeasibleError,
    InstanceError,
    MismatchError,
    RpoptError,
    SolverError,
)
from rpopt.plans import Layout, Placement, Plan
from rpopt.presets import preset
from rpopt.problems import WindowProblems
from rpopt.rules import PackingRules
from rpopt.stop import FirstOf, MaxRuntime, MaxSweeps
from rpopt.topology import Topology
from rpopt.window import Window

if TYPE_CHECKING:
    from rpopt.certifier import certify
    from rpopt.comparison import compare
    from rpopt.io import read
    from rpopt.io.synthetic import synthetic_window
    from rpopt.packing.rows import certify_rows
    from rpopt.planner import plan
    from rpopt.reporting import report
    from rpopt.verifier import verify_certificate, verify_plan

_ON_DEMAND = {
    "certify": "rpopt.certifier",
    "certify_rows": "rpopt.packing.rows",
    "compare": "rpopt.comparison",
    "plan": "rpopt.planner",
    "read": "rpopt.io",
    "report": "rpopt.reporting",
    "synthetic_window": "rpopt.io.synthetic",
    "verify_certificate": "rpopt.verifier",
    "verify_plan": "rpopt.verifier",
}

__all__ = [
    "AttentionClass",
    "Bound",
    "Certificate",
    "CertificateError",
    "CostModel",
    "FileFormatError",
    "FirstOf",
    "InfeasibleError",
    "InstanceError",
    "Layout",
    "MaxRuntime",
    "MaxSweeps",
    "MismatchError",
    "PackingRules",
    "Placement",
    "Plan",
    "RpoptError",
    "SolverError",
    "Topology",
    "Window",
    "WindowProblems",
    "certify",
    "certify_rows",
    "compare",
    "plan",
    "preset",
    "read",
    "report",
    "synthetic_window",
    "verify_certificate",
    "verify_plan",
]


def __getattr__(name: str) -> Any:
    """Load a function at its first use."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'rpopt' has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)
