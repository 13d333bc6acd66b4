"""The `.npz` container: arrays in a zip file, read and written a piece at a time.

NumPy's own reader copies through pickle-capable code and evaluates headers; this one
accepts plain integer arrays and one text header, nothing else, and checks every size
before it allocates. What it writes, `numpy.load` reads.
"""

import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rpopt.errors import FileFormatError
from rpopt.io.access import AnyPath, reading

HEADER = "header"
# Larger arrays are stored as they are: deflate is 10 to 40 times slower than a disk.
COMPRESS_BELOW_BYTES = 2**25
_PIECE_BYTES = 2**22
_MAGIC = b"\x93NUMPY"
_MAX_TEXT_BYTES = 2**16
_TEXT = re.compile(
    r"\{'descr': '([^']*)', 'fortran_order': (True|False),"
    r" 'shape': \(([0-9, ]*)\), \} *\n"
)
_PLAIN_TYPE = re.compile(r"[<>|][iu][1248]|[<>]U[0-9]{1,8}")


def write_npz_members(
    file: BinaryIO, header: str, arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Write a text header and arrays as a zip file; equal content, equal bytes."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {HEADER: np.array(header), **arrays}.items():
            info = zipfile.ZipInfo(f"{name}.npy")
            if array.nbytes < COMPRESS_BELOW_BYTES:
                info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


class Member:
    """One array of an `.npz` file, read from its start in pieces.

    Parameters
    ----------
    archive, name
        The open file and the array's name in it.

    Raises
    ------
    FileFormatError
        When the array is missing, holds pickled objects or anything but integers or
        text, or its size does not match its header.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        try:
            info = archive.getinfo(f"{name}.npy")
        except KeyError:
            found = ", ".join(member_names(archive)) or "none"
            raise FileFormatError(f"no array {name!r} in it (found: {found})") from None
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FileFormatError(
                f"array {name!r} uses zip method {info.compress_type}; save it with"
                " numpy.savez or numpy.savez_compressed"
            )
        self.name = name
        self._stream = archive.open(info)
        self.dtype, self.shape = self._read_header()
        expected = math.prod(self.shape) * self.dtype.itemsize
        found_bytes = info.file_size - self._stream.tell()
        if expected != found_bytes:
            raise FileFormatError(
                f"array {name!r} of shape {self.shape} needs {expected} bytes but has"
                f" {found_bytes}"
            )
        self._rows_left = self.shape[0] if self.shape else 1

    def read(self, num_rows: int | None = None) -> npt.NDArray[Any]:
        """Return the next rows along the first axis; all that are left by default."""
        rows = self._rows_left if num_rows is None else num_rows
        if not 0 <= rows <= self._rows_left:
            raise FileFormatError(
                f"{rows} rows of array {self.name!r} asked for, {self._rows_left} left"
            )
        shape = (rows, *self.shape[1:]) if self.shape else ()
        array = np.empty(shape, dtype=self.dtype)
        if array.nbytes:
            self._fill(array.reshape(-1).view(np.uint8).data)
        self._rows_left -= rows
        if self._rows_left == 0 and self._stream.read(1):  # also checks the CRC
            raise FileFormatError(f"array {self.name!r} is followed by other data")
        array.setflags(write=False)
        return array

    def _fill(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            piece = self._stream.read(min(_PIECE_BYTES, len(buffer) - done))
            if not piece:
                raise FileFormatError(f"array {self.name!r} ends too early")
            buffer[done : done + len(piece)] = piece
            done += len(piece)

    def _read_header(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        start = self._stream.read(8)
        if start[:6] != _MAGIC or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
            raise FileFormatError(f"member {self.name!r} is not a NumPy array")
        form = "<H" if start[6] == 1 else "<I"
        (size,) = struct.unpack(form, self._stream.read(struct.calcsize(form)))
        text = self._stream.read(min(size, _MAX_TEXT_BYTES)).decode("latin1")
        match = _TEXT.fullmatch(text)
        if match is None:
            raise FileFormatError(
                f"array {self.name!r} has a header that is not understood; only plain"
                " arrays are read"
            )
        kind, is_fortran, shape = match.groups()
        if kind == "|O":
            raise FileFormatError(
                f"array {self.name!r} holds pickled objects, which are never loaded;"
                " save it as an integer array"
            )
        if not _PLAIN_TYPE.fullmatch(kind) or is_fortran == "True":
            order = "Fortran" if is_fortran == "True" else "C"
            raise FileFormatError(
                f"array {self.name!r} holds {kind} in {order} order; save it as"
                " integers in C order"
            )
        sizes = tuple(int(part) for part in shape.replace(" ", "").split(",") if part)
        return np.dtype(kind), sizes


@contextmanager
def open_npz(path: AnyPath) -> Iterator[zipfile.ZipFile]:
    """Open an `.npz` file; every failure inside is a `FileFormatError` naming it."""
    with reading(path), zipfile.ZipFile(path) as archive:
        yield archive


def member_names(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of all arrays.

    Raises
    ------
    FileFormatError
        When a name occurs twice or does not end in `.npy`.
    """
    names = archive.namelist()
    strange = [name for name in names if not name.endswith(".npy")]
    if strange or len(set(names)) != len(names):
        raise FileFormatError(
            f"members {sorted(strange or names)} are not arrays with a name each"
        )
    return [name.removesuffix(".npy") for name in names]


def read_header(archive: zipfile.ZipFile) -> str:
    """Return the text header.

    Raises
    ------
    FileFormatError
        When there is none.
    """
    if HEADER not in member_names(archive):
        raise FileFormatError(
            "has no header, so rpopt did not write it; build a window from it first"
        )
    member = Member(archive, HEADER)
    if member.dtype.kind != "U" or member.shape:
        raise FileFormatError(f"header is {member.dtype} {member.shape}, not one text")
    return str(member.read().item())
