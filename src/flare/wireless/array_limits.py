"""What an array in a file of somebody else may claim to be, checked before any memory is set aside for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flare.wireless.recorded import COEFFICIENTS

MAX_FILE_BYTES = 1 << 30
MAX_VALUES = 100_000_000
"""Values of one array, a complex one counting two: ten thousand rounds of ten thousand devices."""
MAX_INFLATION = 300
"""How many times its packed size an array of more than `FREE_BYTES` may have; recorded numbers have less than 50."""
FREE_BYTES = 64 << 20
PIECE_BYTES = 1 << 22


class RefusedError(ValueError):
    """What is wrong has been said with file and array."""


def check_shape(name: str, shape: tuple[int, ...], where: str, *, is_complex: bool) -> None:
    """Refuse an array of the wrong shape, of too many values, or complex where numbers are real."""
    if is_complex and name != COEFFICIENTS:
        raise RefusedError(
            f"{where}: holds complex numbers; it must be real (complex channel coefficients are called {COEFFICIENTS})"
        )
    antennas = " or (rounds, devices, antennas)" if name == COEFFICIENTS else ""
    if len(shape) not in ((2, 3) if antennas else (2,)) or min(shape) < 1:
        raise RefusedError(f"{where}: has shape {shape}; it must be (rounds, devices){antennas}, at least one of each")
    values = math.prod(shape) * (2 if is_complex else 1)
    if values > MAX_VALUES:
        raise RefusedError(f"{where}: has shape {shape}, {values:.3g} values; there may be at most {MAX_VALUES}")


def check_inflation(unpacked_bytes: int, packed_bytes: int, where: str, remedy: str) -> None:
    """Refuse a large array that unpacks to more than recorded numbers do."""
    if unpacked_bytes > FREE_BYTES and unpacked_bytes > MAX_INFLATION * packed_bytes:
        raise RefusedError(
            f"{where}: is {packed_bytes} bytes that unpack to {unpacked_bytes}, more than {MAX_INFLATION} times "
            f"as many; {remedy}"
        )


def fill(stored: NDArray[Any], read: Callable[[int], bytes]) -> None:
    """Read all values, a piece at a time; ValueError where the file ends before."""
    left = memoryview(stored.view(np.uint8).data)
    while left:
        piece = read(min(PIECE_BYTES, len(left)))
        if not piece:
            raise ValueError("it ends early")
        left[: len(piece)] = piece
        left = left[len(piece) :]
