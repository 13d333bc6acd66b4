"""Fixtures that any test may use."""

from pathlib import Path

import pytest

from experiments import data
from rpopt.errors import InstanceError


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public benchmark data; tests that need it skip without it."""
    try:
        return data.data_dir()
    except InstanceError as error:
        pytest.skip(str(error))
