"""Arrays of numbers out of an NPZ file that somebody else wrote: no code is run, no claim of the file is believed.

Nothing is set aside for an array before its header, its size in the archive and its packed size agree.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from flare.reading import open_small
from flare.types import Floats

MAX_FILE_BYTES = 1 << 30
MAX_VALUES = 100_000_000
"""Values of one array: ten thousand rounds of ten thousand devices."""
MAX_INFLATION = 300
"""How many times its packed size an array of more than `_FREE_BYTES` may have; recorded numbers have less than 50."""
_FREE_BYTES = 64 << 20
_PIECE_BYTES = 1 << 22
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the two ways in which numpy writes
_DAMAGED = (OSError, ValueError, EOFError, RuntimeError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile)


def read_arrays(path: Path, known: Collection[str]) -> dict[str, Floats]:
    """The arrays of the file, each of shape (rows, columns); ValueError with file and array where one is unsound, or
    has a name that is not `known`."""
    with open_small(path, MAX_FILE_BYTES) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path}: is not an NPZ file (not a zip archive); write it with numpy.savez")
        try:
            archive = zipfile.ZipFile(cast(BinaryIO, _InPieces(file)))
        except _DAMAGED as error:
            raise ValueError(f"{path}: is a damaged NPZ file ({error}); write it with numpy.savez") from None
        with archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in members:
                if name not in known:
                    raise ValueError(f"{path}: unknown array '{name:.80}'; the arrays are {', '.join(known)}")
            if len(members) < len(archive.infolist()):
                raise ValueError(f"{path}: holds an array twice; give each once")
            return {name: _array(archive, info, f"{path}, array {name}") for name, info in members.items()}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> Floats:
    if info.compress_type not in _PACKED:
        raise ValueError(
            f"{where}: is packed by method {info.compress_type} of zip, which numpy does not write; write it with "
            "numpy.savez or numpy.savez_compressed"
        )
    try:
        with archive.open(info) as member:
            shape, fortran, dtype = _header(member, where)
            _check_claims(shape, dtype, info, member.tell(), where)
            stored = np.empty(math.prod(shape), dtype)
            _fill(stored, member)
    except _RefusedError:
        raise
    except _DAMAGED as error:
        raise ValueError(f"{where}: cannot be read ({error}); write it with numpy.savez") from None
    with np.errstate(over="ignore"):
        return stored.reshape(shape, order="F" if fortran else "C").astype(np.float64, order="C")


class _RefusedError(ValueError):
    """What is wrong has been said with file and array."""


def _header(member: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type that an array claims to have."""
    start = member.read(npy.MAGIC_LEN)
    if not start.startswith(npy.MAGIC_PREFIX):
        raise _RefusedError(f"{where}: holds bytes, not numbers; write it with numpy.savez")
    if tuple(start[-2:]) != (1, 0):  # later versions are for headers of more than 64 KiB
        raise _RefusedError(f"{where}: is written in an odd version of numpy's format; write it with numpy.savez")
    try:
        shape, fortran, dtype = npy.read_array_header_1_0(member)
    except Exception as error:  # numpy evaluates the text of the header, and a bad one fails in many ways
        raise _RefusedError(f"{where}: cannot be read ({error!s:.80}); write it with numpy.savez") from None
    return shape, fortran, dtype


def _check_claims(
    shape: tuple[int, ...], dtype: np.dtype[Any], info: zipfile.ZipInfo, header_bytes: int, where: str
) -> None:
    if dtype.hasobject or dtype.kind not in "iuf":
        raise _RefusedError(f"{where}: holds {dtype}, not numbers; store it as float64")
    if len(shape) != 2 or min(shape) < 1:
        raise _RefusedError(f"{where}: has shape {shape}; it must be (rounds, devices), at least one of each")
    values = math.prod(shape)
    if values > MAX_VALUES:
        raise _RefusedError(f"{where}: has shape {shape}, {values:.3g} values; there may be at most {MAX_VALUES}")
    if info.file_size != header_bytes + values * dtype.itemsize:
        raise _RefusedError(f"{where}: has shape {shape} by its header, but {info.file_size} bytes; it is damaged")
    if info.file_size > _FREE_BYTES and info.file_size > MAX_INFLATION * info.compress_size:
        raise _RefusedError(
            f"{where}: is {info.compress_size} bytes that unpack to {info.file_size}, more than {MAX_INFLATION} times "
            "as many; store it with numpy.savez, unpacked"
        )


def _fill(stored: NDArray[Any], member: Any) -> None:
    """Read all values; ValueError where some are missing or too many. The archive checks their checksum at the end."""
    left = memoryview(stored.view(np.uint8).data)
    while left:
        piece = member.read(min(_PIECE_BYTES, len(left)))
        if not piece:
            raise ValueError("it ends early")
        left[: len(piece)] = piece
        left = left[len(piece) :]
    if member.read(1):
        raise ValueError("it holds more values than its header says")


class _InPieces:
    """A file that gives no more than a few megabytes at once: what a damaged directory asks for is not set aside."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """The next bytes, all that are left where `size` is negative."""
        if size < 0:
            here = self._file.tell()
            size = self._file.seek(0, io.SEEK_END) - here
            self._file.seek(here)
        if size > _PIECE_BYTES:
            raise zipfile.BadZipFile(f"its directory claims {size} bytes")
        return self._file.read(size)
