"""Who imports whom: the exact table, and what `import rpopt` loads."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rpopt", "formulations", "experiments")

CORE = ("core",)
ROOMS = ("rpopt.packing", "rpopt.placement", "rpopt.layout")
ROOM_TYPES = tuple(
    f"{room}.{kind}" for room in ROOMS for kind in ("instance", "solution")
)
SOLVING = ("formulations", "rpopt.exact", "rpopt.highs", *ROOMS, *CORE)
EVERYTHING_BUT_THE_TRAINER = (
    "rpopt",
    *SOLVING,
    "rpopt.anneal",
    "rpopt.certifier",
    "rpopt.comparison",
    "rpopt.io",
    "rpopt.online",
    "rpopt.planner",
    "rpopt.plotting",
    "rpopt.problems",
    "rpopt.reporting",
    "rpopt.stacks",
    "rpopt.verifier",
)

# A part may import itself and what stands here, no more. Top-level modules of rpopt
# without a row are core. The facade, rpopt/__init__.py, loads most of it on demand.
ALLOWED = {
    "core": (),
    **dict.fromkeys(ROOMS, CORE),
    "rpopt.problems": (*ROOM_TYPES, *CORE),
    "rpopt.anneal": (*ROOMS, *CORE),
    "rpopt.highs": CORE,
    "rpopt.exact": ("rpopt.highs", *ROOMS, *CORE),
    "formulations": (*ROOM_TYPES, *CORE),
    "rpopt.certifier": ("rpopt.problems", *SOLVING),
    "rpopt.verifier": ("rpopt.problems", *ROOMS, *CORE),
    "rpopt.comparison": ("rpopt.problems", *ROOMS, *CORE),
    "rpopt.reporting": ("rpopt.problems", *ROOMS, *CORE),
    "rpopt.planner": ("rpopt.problems", "rpopt.anneal", *ROOMS, *CORE),
    "rpopt.io": (*ROOM_TYPES, *CORE),
    "rpopt.online": (
        "rpopt.planner",
        "rpopt.problems",
        "rpopt.anneal",
        *ROOMS,
        *CORE,
    ),
    "rpopt.stacks": ("rpopt.planner", "rpopt.io", "rpopt.online.registration", *CORE),
    "rpopt.trainer": ("rpopt.online", "rpopt.planner", "rpopt.io", *CORE),
    "rpopt.plotting": CORE,
    "rpopt.cli": EVERYTHING_BUT_THE_TRAINER,
    "rpopt": EVERYTHING_BUT_THE_TRAINER,
    "experiments": (*EVERYTHING_BUT_THE_TRAINER, "rpopt.trainer"),
}

# Third parties that only these parts of what we ship may import.
ONLY_IN = {
    "torch": (
        "rpopt.anneal",
        "rpopt.online",
        "rpopt.trainer",
        "rpopt.stacks",
        "rpopt.io.readers",
    ),
    "pyomo": ("formulations", "rpopt.highs"),
    "highspy": ("rpopt.highs",),
    "matplotlib": ("rpopt.plotting",),
    "ortools": (),
    "pyscipopt": (),
}


def is_within(module: str, parent: str) -> bool:
    """Below the parent, or one of several files of it: cli_plan.py goes with cli.py."""
    return module == parent or module.startswith((f"{parent}.", f"{parent}_"))


def part_of(module: str) -> str:
    """The row of the table that a module of ours belongs to."""
    if module == "rpopt":
        return module
    rows = (row for row in ALLOWED if row != "rpopt" and is_within(module, row))
    return next(rows, "core")


def is_allowed(importer: str, imported: str) -> bool:
    part, target = part_of(importer), part_of(imported)
    return part == target or any(
        target == entry if entry in ("core", "rpopt") else is_within(imported, entry)
        for entry in ALLOWED[part]
    )


def module_names(root: Path) -> dict[str, Path]:
    files = (file for package in PACKAGES for file in (root / package).rglob("*.py"))
    return {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in files
    }


def imports_of(file: Path, known: frozenset[str]) -> set[str]:
    """All that a file imports, inside functions too; `from package import module` is
    an import of the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = names & known
            found |= submodules or {node.module}
            if submodules != names:
                found.add(node.module)
    return found


def violations(root: Path) -> list[str]:
    modules = module_names(root)
    known = frozenset(modules)
    broken = []
    for importer, file in modules.items():
        for imported in imports_of(file, known):
            if imported.split(".")[0] in PACKAGES:
                fine = is_allowed(importer, imported)
            else:
                places = ONLY_IN.get(imported.split(".")[0])
                fine = (
                    places is None
                    or is_within(importer, "experiments")
                    or any(is_within(importer, place) for place in places)
                )
            if not fine:
                broken.append(f"{importer} imports {imported}")
    return sorted(broken)


def test_every_import_is_in_the_table() -> None:
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("rpopt/cost.py", "from rpopt.packing import heuristics"),
        ("rpopt/cost.py", "from rpopt import planner"),
        ("rpopt/a_new_core_module.py", "import rpopt.io"),
        ("rpopt/packing/bounds.py", "from rpopt.layout.instance import LayoutInstance"),
        ("rpopt/exact/pricing.py", "from rpopt.anneal import loop"),
        ("rpopt/planner.py", "from rpopt import plan"),
        ("rpopt/planner.py", "def f():\n    from rpopt.certifier import certify"),
        ("rpopt/stacks/verl.py", "from rpopt.online.collective import OnlinePlanner"),
        ("rpopt/cli/plan.py", "import rpopt.trainer"),
        ("rpopt/cost.py", "import experiments.runner"),
        ("formulations/packing_arcflow.py", "from rpopt.packing.bounds import volume"),
        ("rpopt/cost.py", "import torch"),
        ("rpopt/certifier.py", "from pyomo.environ import value"),
        ("formulations/packing_arcflow.py", "import highspy"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, path: str, line: str) -> None:
    write(tmp_path, path, line)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("rpopt/cost.py", "import numpy as np\nfrom rpopt.errors import RpoptError"),
        (
            "rpopt/packing/bounds.py",
            "from rpopt.packing.instance import PackingInstance",
        ),
        ("rpopt/stacks/verl.py", "import torch\nimport rpopt.online.registration"),
        ("rpopt/cli_plan.py", "import rpopt\nfrom rpopt.certifier import certify"),
        ("rpopt/highs.py", "import highspy\nimport pyomo.environ as pyo"),
        (
            "formulations/packing.py",
            "from rpopt.packing.instance import PackingInstance",
        ),
        ("experiments/race.py", "import rpopt.trainer\nimport ortools"),
    ],
)
def test_an_allowed_import_is_not(tmp_path: Path, path: str, line: str) -> None:
    write(tmp_path, path, line)
    assert violations(tmp_path) == []


def write(root: Path, path: str, text: str) -> None:
    for package in PACKAGES:
        (root / package).mkdir()
    for name in ("packing/heuristics", "planner"):
        (root / "rpopt" / name).parent.mkdir(exist_ok=True)
        (root / "rpopt" / f"{name}.py").touch()
    file = root / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_importing_rpopt_loads_numpy_only() -> None:
    script = (
        "import json, sys; import numpy;"
        " bare = set(sys.modules); import rpopt;"
        " print(json.dumps(sorted({name.split('.')[0]"
        " for name in set(sys.modules) - bare})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    loaded = set(json.loads(done.stdout)) - set(sys.stdlib_module_names)
    assert loaded <= {"rpopt", "numpy"}
