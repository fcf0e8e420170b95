"""The files of the image data sets: what they must be, and what is in them.

A file counts as the one it should be when its size and its SHA-256 say so; nothing unchecked is ever parsed.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flare.data.dataset import Labels

Bytes = NDArray[np.uint8]

CIFAR_SHAPE = (3, 32, 32)  # channels (red, green, blue), height, width
_GZIP = b"\x1f\x8b"
_IDX_OF_BYTES = b"\x00\x00\x08"  # the magic number of an idx file of unsigned bytes; a fourth byte counts the axes


@dataclass(frozen=True)
class DataFile:
    """A file that belongs to a data set: its name, and its size and SHA-256 once unpacked."""

    name: str
    size_bytes: int
    sha256: str

    @property
    def max_packed_bytes(self) -> int:
        """The most that the file can have, plain or gzipped: gzip adds a little to what it cannot compress."""
        return self.size_bytes + (self.size_bytes >> 8) + 1024

    def check(self, content: bytes, where: str) -> None:
        """ValueError where `content`, found at `where`, is not that of this file."""
        if len(content) != self.size_bytes:
            raise ValueError(
                f"{where}: has {len(content)} bytes in place of {self.size_bytes}; it is cut or another file"
            )
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{where}: is damaged or another file: its SHA-256 is {found[:12]}..., not {self.sha256[:12]}..."
            )


def spelled(name: str) -> Iterable[str]:
    """The ways in which a file is named by those who pass it on: gzipped or not, `train-images.idx3-ubyte` too."""
    for stem in dict.fromkeys((name, name.replace("-idx", ".idx"))):
        yield stem
        yield f"{stem}.gz"


def unpacked(content: bytes, max_bytes: int, where: str) -> bytes:
    """The content, gunzipped where it is gzipped; ValueError where that is broken or gives more than `max_bytes`."""
    if not content.startswith(_GZIP):
        return content
    unzip = zlib.decompressobj(wbits=31)
    try:
        plain = unzip.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"{where}: is a damaged gzip file ({error})") from None
    if len(plain) > max_bytes:
        raise ValueError(f"{where}: unpacks to more than the {max_bytes} bytes it should have")
    return plain


def read_idx(content: bytes, where: str, *, axes: int) -> Bytes:
    """The array of an idx file of unsigned bytes with so many axes, as MNIST and Fashion-MNIST have them.

    The format: two zero bytes, the type (8 for bytes), the number of axes, the length of each axis as a big-endian
    32-bit number, then the values. ValueError where a byte is missing, left over or not as it must be.
    """
    header = 4 + 4 * axes
    if len(content) < header or content[:3] != _IDX_OF_BYTES or content[3] != axes:
        raise ValueError(
            f"{where}: is not an idx file of bytes with {axes} axes: it begins with {content[:4].hex(' ') or 'nothing'}"
            f", not with 00 00 08 {axes:02x}"
        )
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", axes, 4))
    if math.prod(shape) != len(content) - header:
        raise ValueError(
            f"{where}: its header tells of {' x '.join(map(str, shape))} values, but {len(content) - header} follow"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_idx_pair(images: bytes, labels: bytes, where: str, *, num_classes: int) -> tuple[Bytes, Labels]:
    """Images of shape (samples, 1, height, width) and their labels, from the two idx files that hold them."""
    pixels = read_idx(images, f"{where} images", axes=3)
    given = read_idx(labels, f"{where} labels", axes=1)
    if len(pixels) != len(given):
        raise ValueError(f"{where}: {len(pixels)} images, but {len(given)} labels")
    _check_labels(given, where, num_classes)
    return pixels[:, np.newaxis], given.astype(np.int64)


def read_cifar10(content: bytes, where: str, *, num_classes: int = 10) -> tuple[Bytes, Labels]:
    """Images of shape (samples, 3, 32, 32) and their labels, from a batch of CIFAR-10's binary version.

    A sample is one byte for the label and 3072 for the red, green and blue planes, row by row.
    """
    row_bytes = 1 + math.prod(CIFAR_SHAPE)
    if not content or len(content) % row_bytes:
        raise ValueError(f"{where}: has {len(content)} bytes, which is no whole number of samples of {row_bytes} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row_bytes)
    _check_labels(rows[:, 0], where, num_classes)
    return rows[:, 1:].reshape(-1, *CIFAR_SHAPE), rows[:, 0].astype(np.int64)


def _check_labels(labels: Bytes, where: str, num_classes: int) -> None:
    wrong = np.flatnonzero(labels >= num_classes)
    if wrong.size:
        raise ValueError(f"{where}: sample {wrong[0]} has the label {labels[wrong[0]]}; labels go to {num_classes - 1}")
