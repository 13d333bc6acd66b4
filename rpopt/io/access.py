"""Reads that fail with one kind of error, writes that happen whole or not at all."""

import os
import secrets
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rpopt.errors import FileFormatError, RpoptError

AnyPath = str | os.PathLike[str]

# What the standard library raises on damaged zip and JSON files, and on the headers of
# NumPy files, which are Python text.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
)


@contextmanager
def reading(path: AnyPath) -> Iterator[None]:
    """Turn every failure to read a file into a `FileFormatError` that names it."""
    try:
        yield
    except RpoptError as error:
        if str(error).startswith(f"{path}: "):  # named by a reader within
            raise
        raise FileFormatError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise FileFormatError(f"{path}: no such file; check the name") from error
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be read ({error}); check the file and its permissions"
        ) from error
    except _DAMAGE as error:
        raise FileFormatError(
            f"{path}: truncated, damaged or of another format ({one_line(error)});"
            " restore it or write it again"
        ) from error


def one_line(error: Exception) -> str:
    """Return the text of an error from elsewhere without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def writable_folder(path: AnyPath) -> Path:
    """Return a folder that files can be written to, made where it is missing.

    Raises
    ------
    FileFormatError
        When there is no such folder.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise FileFormatError(
            f"{path}: not a folder that can be written to ({error.strerror or error});"
            " choose another one"
        ) from error


@contextmanager
def atomic_writer(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when it is complete.

    The bytes go to a hidden file in the same folder, which replaces `path` at the end
    and is removed on any failure, so a reader never sees half a file.

    Raises
    ------
    FileFormatError
        When the folder is missing or cannot be written to.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be written ({error.strerror or error}); check that the"
            " folder exists, may be written to and has room"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
