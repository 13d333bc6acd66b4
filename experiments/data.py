"""Where the benchmark data lie; they are never part of the repository."""

import os
from pathlib import Path

from rpopt.errors import InstanceError

DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"


def data_dir() -> Path:
    """Return the folder that RPOPT_DATA names, else ../shared/data.

    Raises
    ------
    InstanceError
        When there is no such folder.
    """
    path = Path(os.environ.get("RPOPT_DATA") or DEFAULT)
    if not path.is_dir():
        raise InstanceError(
            f"no benchmark data at {path}; set RPOPT_DATA to the folder that holds them"
        )
    return path
