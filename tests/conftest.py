"""Fixtures that any test may use."""

from pathlib import Path

import pytest

from rpopt.errors import InstanceError
from rpopt.io import reference


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public benchmark data; tests that need it skip without it."""
    try:
        return reference.data_dir()
    except InstanceError as error:
        pytest.skip(str(error))
