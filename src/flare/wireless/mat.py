"""Arrays of numbers out of a MATLAB file (.mat) that somebody else wrote; no claim of the file is believed.

Read are the formats of MATLAB's `save` with -v4, -v6 and -v7, the default; -v7.3 is another format (HDF5) and refused.
A general reader, such as SciPy's, sets memory aside as the file claims it and recurses into cells and objects. Here
only full arrays of numbers are read, a piece at a time, and nothing is set aside before claims and sizes agree.

MAT-File Format, MathWorks: a head of 128 bytes, then elements, each a tag (type, bytes) and its data. A variable is an
element `matrix`, itself made of elements: flags, dimensions, name, real part, imaginary part. -v7 packs each with zlib.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from flare.reading import open_small
from flare.types import Floats
from flare.wireless.array_limits import MAX_FILE_BYTES, RefusedError, check_inflation, check_shape, fill
from flare.wireless.recorded import QUANTITIES, Complexes, Recorded, known_name

_HEAD_BYTES = 128
_MATRIX, _PACKED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TYPES_V4 = {0: "f8", 1: "f4", 2: "i4", 3: "i2", 4: "u2", 5: "u1"}
_NUMBERS = range(6, 16)  # classes of arrays: double, single and the whole numbers
_OTHER = {
    1: "a cell array",
    2: "a structure",
    3: "an object",
    4: "text",
    5: "a sparse matrix",
    16: "a function",
    17: "an object",
    18: "an object",
}
_LOGICAL, _COMPLEX = 0x0200, 0x0800
_MAX_NAME_BYTES = 256
_MAX_DIMENSIONS = 32
_MAX_ZLIB_INFLATION = 1032  # no stream of zlib unpacks to more
_INPUT_BYTES = 1 << 16
_HDF5 = b"\x89HDF\r\n\x1a\n"


def read_mat(path: Path) -> Recorded:
    """The recorded quantities in the file; ValueError with file and variable where one is unsound or unknown."""
    values: dict[str, Floats | Complexes] = {}
    with open_small(path, MAX_FILE_BYTES) as file:
        try:
            head = file.read(_HEAD_BYTES)
            _refuse_hdf5(path, file, head)
            for name, read in _variables(path, file, head):
                if name in values:
                    raise RefusedError(f"{path}: holds variable {name} twice; give it once")
                values[name] = read
        except RefusedError:
            raise
        except (OSError, ValueError, OverflowError, struct.error, zlib.error) as error:
            raise ValueError(f"{path}: is a damaged MATLAB file ({error}); {_remedy(path)}") from None

    def place(name: str, index: int, device: int) -> str:
        return f"variable {name}, round {index}, device {device} ({name}({index + 1},{device + 1}) in MATLAB)"

    return Recorded(values, place, kind="variable")


def _remedy(path: Path, name: str = "h") -> str:
    return f"write it in MATLAB with save('{path.name}', '{name}', '-v7')"


def _refuse_hdf5(path: Path, file: BinaryIO, head: bytes) -> None:
    file.seek(512)  # where MATLAB puts the HDF5 file
    if head.startswith((b"MATLAB 7.3", _HDF5)) or file.read(len(_HDF5)) == _HDF5:
        raise RefusedError(f"{path}: is a MATLAB file of version 7.3 (HDF5), which is not read; {_remedy(path)}")


def _variables(path: Path, file: BinaryIO, head: bytes) -> Iterator[tuple[str, Floats | Complexes]]:
    """Names and arrays, in the order of the file."""
    if len(head) >= 20 and 0 in head[:4]:  # a text, in later versions, has no NUL
        file.seek(0)
        yield from _variables_v4(path, file)
        return
    order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
    if order is None:
        raise RefusedError(f"{path}: is not a MATLAB file (.mat); {_remedy(path)}")
    start = _HEAD_BYTES
    size = file.seek(0, io.SEEK_END)
    while start < size:
        file.seek(start)
        kind, num_bytes = struct.unpack(f"{order}II", _exactly(file, 8))
        start += 8 + num_bytes
        if start > size:
            raise ValueError("it ends early")
        if kind == _PACKED:
            packed = _Unpacked(file, num_bytes)
            kind, claimed = struct.unpack(f"{order}II", _exactly(packed, 8))
            if claimed > _MAX_ZLIB_INFLATION * num_bytes:
                raise ValueError(f"{num_bytes} bytes cannot unpack to {claimed}")
            matrix = _Matrix(packed, order, claimed, packed_bytes=num_bytes)
        else:
            matrix = _Matrix(file, order, num_bytes)
        if kind != _MATRIX:
            raise ValueError(f"it has an element of type {kind}, which is no variable")
        yield matrix.variable(path)


class _Source(Protocol):
    """Something that bytes are read from: the file, or a packed element of it."""

    def read(self, num_bytes: int, /) -> bytes: ...


class _Unpacked:
    """A packed element, unpacked no further than it is read."""

    def __init__(self, file: BinaryIO, packed_bytes: int) -> None:
        self._file, self._left = file, packed_bytes
        self._zlib = zlib.decompressobj()

    def read(self, num_bytes: int, /) -> bytes:
        """Up to so many bytes; none at the end."""
        while not self._zlib.eof:
            piece = self._zlib.unconsumed_tail
            if not piece:
                piece = self._file.read(min(self._left, _INPUT_BYTES))
                self._left -= len(piece)
            unpacked = self._zlib.decompress(piece, num_bytes)
            if unpacked:
                return unpacked
            if not piece:
                raise ValueError("a packed variable ends early")
        return b""

    def check_end(self) -> None:
        """ValueError where more follows, or the checksum of zlib (at the end) is wrong."""
        if self.read(1):
            raise ValueError("a packed variable is longer than it says")


def _exactly(source: _Source, num_bytes: int) -> bytes:
    """So many bytes, which are few."""
    pieces = b""
    while len(pieces) < num_bytes:
        piece = source.read(num_bytes - len(pieces))
        if not piece:
            raise ValueError("it ends early")
        pieces += piece
    return pieces


@dataclass
class _Matrix:
    """A variable in the file: `left` bytes of it are still to be read."""

    source: _Source
    order: str
    left: int
    packed_bytes: int | None = None

    def variable(self, path: Path) -> tuple[str, Floats | Complexes]:
        """Its name and its numbers."""
        flags = self._small(8)
        if len(flags) != 8:
            raise ValueError("a variable has no flags")
        bits = int(np.frombuffer(flags, f"{self.order}u4")[0])
        if bits & 0xFF == 17:  # such an object has neither dimensions nor, at this place, a name
            raise RefusedError(f"{path}: holds an object, not numbers; {_remedy(path)}")
        dimensions = self._small(4 * _MAX_DIMENSIONS)
        shape = tuple(np.frombuffer(dimensions, f"{self.order}i4").tolist())
        written = self._small(_MAX_NAME_BYTES).rstrip(b"\0").decode("utf-8", "replace")
        name = _known(path, written)
        where = f"{path}, variable {name}"
        is_complex = bool(bits & _COMPLEX)
        _check_class(path, where, name, bits)
        check_shape(name, shape, where, is_complex=is_complex)
        real = self._numbers(math.prod(shape), where)
        if is_complex:
            numbers: Floats | Complexes = _joined(real, self._numbers(math.prod(shape), where))
        else:
            numbers = real
        if self.left:
            raise ValueError(f"variable {name} is longer than its shape {shape} says")
        if isinstance(self.source, _Unpacked):
            self.source.check_end()
        return name, numbers.reshape(shape, order="F")

    def _tag(self) -> tuple[int, int, bytes | None]:
        """Type and bytes of the element that begins here; four bytes or fewer stand in the tag itself."""
        tag = self._take(8)
        first, num_bytes = struct.unpack(f"{self.order}II", tag)
        if first >> 16:
            if first >> 16 > 4:
                raise ValueError("a short element is longer than four bytes")
            return first & 0xFFFF, first >> 16, tag[4 : 4 + (first >> 16)]
        return first, num_bytes, None

    def _take(self, num_bytes: int) -> bytes:
        self._spend(num_bytes)
        return _exactly(self.source, num_bytes)

    def _spend(self, num_bytes: int) -> None:
        self.left -= num_bytes
        if self.left < 0:
            raise ValueError("a part of a variable is longer than the variable")

    def _small(self, max_bytes: int) -> bytes:
        """The next element, of a few bytes."""
        _, num_bytes, data = self._tag()
        if data is not None:
            return data
        if num_bytes > max_bytes:
            raise ValueError(f"a part of {num_bytes} bytes stands where at most {max_bytes} can")
        return self._take(num_bytes + -num_bytes % 8)[:num_bytes]

    def _numbers(self, count: int, where: str) -> Floats:
        """The next element, which must be so many numbers; MATLAB stores them in the shortest type that holds them."""
        kind, num_bytes, data = self._tag()
        if kind not in _TYPES:
            raise ValueError(f"numbers are stored as type {kind}")
        dtype = np.dtype(self.order + _TYPES[kind])
        if num_bytes != count * dtype.itemsize:
            raise ValueError(f"{count} numbers of type {dtype.name} do not take {num_bytes} bytes")
        if data is not None:
            return np.frombuffer(data, dtype).astype(np.float64)
        self._spend(num_bytes)
        if self.packed_bytes is not None:
            check_inflation(num_bytes, self.packed_bytes, where, "save it with -v6, unpacked")
        stored = np.empty(count, dtype)
        fill(stored, self.source.read)
        self._take(min(-num_bytes % 8, self.left))
        return stored.astype(np.float64)


def _known(path: Path, written: str) -> str:
    name = known_name(written)
    if name is None:
        raise RefusedError(
            f"{path}: unknown variable '{written:.80}'; the variables are {', '.join(QUANTITIES)} "
            f"(save('{path.name}', 'h', '-v7') saves one alone)"
        )
    return name


def _check_class(path: Path, where: str, name: str, bits: int) -> None:
    if bits & 0xFF in _NUMBERS and not bits & _LOGICAL:
        return
    what = "true and false" if bits & _LOGICAL else _OTHER.get(bits & 0xFF, f"a value of class {bits & 0xFF}")
    full = f": {name} = full({name})" if bits & 0xFF == 5 else ""
    raise RefusedError(
        f"{where}: holds {what}, not numbers; make it a full numeric array{full}, then {_remedy(path, name)}"
    )


def _joined(real: Floats, imaginary: Floats) -> Complexes:
    numbers = np.empty(len(real), np.complex128)
    numbers.real, numbers.imag = real, imaginary
    return numbers


def _variables_v4(path: Path, file: BinaryIO) -> Iterator[tuple[str, Floats | Complexes]]:
    """The variables of a file in the format of MATLAB 4: a head of five whole numbers each, then name and values."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    while file.tell() < size:
        head = _exactly(file, 20)
        order = "<" if 0 <= struct.unpack("<i", head[:4])[0] < 10_000 else ">"
        code, rows, columns, is_complex, name_bytes = struct.unpack(f"{order}5i", head)
        kind = _TYPES_V4.get(code // 10 % 10)
        if not 0 <= code < 2000 or code // 100 % 10 or kind is None or code % 10 > 2 or is_complex not in (0, 1):
            raise RefusedError(f"{path}: is not a MATLAB file (.mat); {_remedy(path)}")
        if not 0 < name_bytes <= _MAX_NAME_BYTES:
            raise ValueError(f"a name has {name_bytes} bytes")
        name = _known(path, _exactly(file, name_bytes).rstrip(b"\0").decode("latin-1"))
        where = f"{path}, variable {name}"
        _check_class(path, where, name, (6, 4, 5)[code % 10])
        check_shape(name, (rows, columns), where, is_complex=bool(is_complex))
        dtype, count = np.dtype(order + kind), rows * columns
        if count * dtype.itemsize * (1 + is_complex) > size - file.tell():
            raise ValueError("it ends early")
        parts = np.empty((1 + is_complex) * count, dtype)
        fill(parts, file.read)
        real, imaginary = parts[:count].astype(np.float64), parts[count:].astype(np.float64)
        yield name, (_joined(real, imaginary) if is_complex else real).reshape((rows, columns), order="F")
