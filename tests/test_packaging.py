"""What the wheel holds, and that it works away from the repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(ROOT)]
    subprocess.run([*build, "--outdir", str(folder)], check=True, capture_output=True)
    (file,) = folder.glob("rpopt-*.whl")
    return file


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"rpopt", "formulations", info}
    assert {"rpopt/py.typed", "formulations/py.typed"} <= set(names)
    assert f"{info}/licenses/LICENSE" in names


def test_both_packages_import_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import formulations, rpopt;"
        " print(formulations.__file__, rpopt.__file__, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert [Path(line).parents[1] for line in done.stdout.splitlines()] == [
        tmp_path
    ] * 2
