"""What `import rpopt` offers, and that it stays what it is."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

import rpopt


@pytest.mark.parametrize("name", rpopt.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(rpopt, name) is getattr(rpopt, name)


def test_no_module_hides_a_function() -> None:
    """A module of the same name would replace the function once it is imported."""
    hidden = [name for name in rpopt.__all__ if find_spec(f"rpopt.{name}")]
    assert not hidden


def test_functions_stay_callable_after_their_first_use() -> None:
    script = (
        "import rpopt; rpopt.compare; rpopt.report; rpopt.verify_plan;"
        "assert callable(rpopt.compare); assert callable(rpopt.report)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="'rpopt' has no attribute 'fly'"):
        _ = rpopt.fly
