"""`torch.load` without arbitrary code: only what is listed here is unpickled."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading
from rpopt.records import IntArray


@lru_cache
def _allowed() -> list[Any]:
    """Return what NumPy arrays and scalars are pickled with, and nothing else."""
    from numpy._core.multiarray import _reconstruct, scalar

    kinds = {type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"}
    both = [_reconstruct, scalar]
    # The same functions under the name that NumPy 1 wrote.
    old = [(f, f"numpy.core.multiarray.{f.__name__}") for f in both]
    return [np.ndarray, np.dtype, *kinds, *both, *old]


def load(path: AnyPath) -> Any:
    """Return the content of a `.pt` file of tensors, arrays and plain containers.

    Tensor storages are mapped, not read.

    Raises
    ------
    FileFormatError
        When the file is missing, damaged, or holds anything that would run code.
    """
    import pickle

    import torch

    with reading(path):
        is_zip = _is_zip(path)
        try:
            with torch.serialization.safe_globals(_allowed()):
                return torch.load(
                    path, map_location="cpu", weights_only=True, mmap=is_zip
                )
        except OSError:
            raise
        except pickle.UnpicklingError as error:
            reason = str(error).partition("Please file an issue")[0]
            raise FileFormatError(
                "damaged, or holds objects other than tensors, arrays, lists and"
                f" dictionaries, which are never loaded ({_first_global(reason)})"
            ) from error
        except Exception as error:  # a damaged file trips torch in any place
            reason = str(error).partition("\n")[0]
            raise FileFormatError(f"truncated or damaged ({reason})") from error


def as_integers(value: Any) -> IntArray:
    """Return a tensor, array or nested list as a NumPy array, without a copy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _is_zip(path: AnyPath) -> bool:
    with Path(path).open("rb") as file:
        return file.read(4) == b"PK\3\4"


def _first_global(reason: str) -> str:
    _, found, rest = reason.partition("GLOBAL ")
    return f"found {rest.split()[0]}" if found else reason.splitlines()[0][:120]
