"""Arrays of numbers out of an NPZ file that somebody else wrote: no code is run, no claim of the file is believed.

Nothing is set aside for an array before its header, its size in the archive and its packed size agree.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from flare.reading import open_small
from flare.types import Floats
from flare.wireless.array_limits import MAX_FILE_BYTES, PIECE_BYTES, RefusedError, check_inflation, check_shape, fill
from flare.wireless.recorded import QUANTITIES, Complexes, Recorded, known_name

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the two ways in which numpy writes
_DAMAGED = (OSError, ValueError, EOFError, RuntimeError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile)


def read_npz(path: Path) -> Recorded:
    """The recorded quantities in the file; ValueError with file and array where one is unsound or unknown."""
    with open_small(path, MAX_FILE_BYTES) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path}: is not an NPZ file (not a zip archive); write it with numpy.savez")
        try:
            archive = zipfile.ZipFile(cast(BinaryIO, _InPieces(file)))
        except _DAMAGED as error:
            raise ValueError(f"{path}: is a damaged NPZ file ({error}); write it with numpy.savez") from None
        with archive:
            members = {}
            for info in archive.infolist():
                name = known_name(info.filename.removesuffix(".npy"))
                if name is None:
                    raise ValueError(
                        f"{path}: unknown array '{info.filename.removesuffix('.npy'):.80}'; the arrays are "
                        f"{', '.join(QUANTITIES)}"
                    )
                if name in members:
                    raise ValueError(f"{path}: holds an array twice, {name}; give each once")
                members[name] = info
            values = {name: _array(archive, info, name, f"{path}, array {name}") for name, info in members.items()}
    return Recorded(values, lambda name, index, device: f"array {name}, round {index}, device {device}")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, where: str) -> Floats | Complexes:
    if info.compress_type not in _PACKED:
        raise ValueError(
            f"{where}: is packed by method {info.compress_type} of zip, which numpy does not write; write it with "
            "numpy.savez or numpy.savez_compressed"
        )
    try:
        with archive.open(info) as member:
            shape, fortran, dtype = _header(member, where)
            _check_claims(name, shape, dtype, info, member.tell(), where)
            stored = np.empty(math.prod(shape), dtype)
            fill(stored, member.read)
            if member.read(1):  # the archive checks the checksum at the end
                raise ValueError("it holds more values than its header says")
    except RefusedError:
        raise
    except _DAMAGED as error:
        raise ValueError(f"{where}: cannot be read ({error}); write it with numpy.savez") from None
    with np.errstate(over="ignore"):
        as_read = stored.reshape(shape, order="F" if fortran else "C")
        if dtype.kind == "c":
            return as_read.astype(np.complex128, order="C")
        return as_read.astype(np.float64, order="C")


def _header(member: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type that an array claims to have."""
    start = member.read(npy.MAGIC_LEN)
    if not start.startswith(npy.MAGIC_PREFIX):
        raise RefusedError(f"{where}: holds bytes, not numbers; write it with numpy.savez")
    if tuple(start[-2:]) != (1, 0):  # later versions are for headers of more than 64 KiB
        raise RefusedError(f"{where}: is written in an odd version of numpy's format; write it with numpy.savez")
    try:
        shape, fortran, dtype = npy.read_array_header_1_0(member)
    except Exception as error:  # numpy evaluates the text of the header, and a bad one fails in many ways
        raise RefusedError(f"{where}: cannot be read ({error!s:.80}); write it with numpy.savez") from None
    return shape, fortran, dtype


def _check_claims(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], info: zipfile.ZipInfo, header_bytes: int, where: str
) -> None:
    if dtype.hasobject or dtype.kind not in "iufc":
        raise RefusedError(f"{where}: holds {dtype}, not numbers; store it as float64")
    check_shape(name, shape, where, is_complex=dtype.kind == "c")
    if info.file_size != header_bytes + math.prod(shape) * dtype.itemsize:
        raise RefusedError(f"{where}: has shape {shape} by its header, but {info.file_size} bytes; it is damaged")
    check_inflation(info.file_size, info.compress_size, where, "store it with numpy.savez, unpacked")


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
        if size > PIECE_BYTES:
            raise zipfile.BadZipFile(f"its directory claims {size} bytes")
        return self._file.read(size)
