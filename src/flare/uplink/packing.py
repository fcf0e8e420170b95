"""Small whole numbers, packed without gaps: `width` bits each, or five numbers below 3 in a byte.

A number is cut into planes of 8, 4, 2 and 1 bits, each at most once but for the first; the planes follow one another,
each filled up to a whole byte. A byte of a plane holds numbers that lie far apart,

    byte j of a plane of w bits:   numbers j, j + q, j + 2 q, ...,     q = ceil(numbers w / 8) bytes in the plane

so that packing is a few operations on whole stretches of memory, on a GPU as on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

_TRITS = 5  # 3^5 = 243 of 256


def packed_bytes(count: int, width: int) -> int:
    """How many bytes `count` numbers of `width` bits take."""
    return sum(-(-count * plane // 8) for plane in _planes(width))


def pack(numbers: Tensor, width: int) -> list[Tensor]:
    """Planes, each uint8 of shape (rows, bytes), of numbers (rows, count), each at least 0 and below 2^width."""
    parts, shift = [], 0
    for plane in _planes(width):
        digits = numbers if plane == width else (numbers >> shift).bitwise_and_((1 << plane) - 1)
        lanes = _lanes(digits.to(torch.uint8), 8 // plane)
        packed = lanes[:, 0].clone()
        for lane in range(1, 8 // plane):
            packed |= lanes[:, lane] << (plane * lane)
        parts.append(packed)
        shift += plane
    return parts


def unpack(messages: Tensor, count: int, width: int) -> Tensor:
    """The numbers (rows, count) of packed bytes (rows, packed_bytes): uint8 up to a width of 8, else int32.

    They are to be read alone: those of 8 bits are the packed bytes themselves.
    """
    numbers: Tensor | None = None
    begin = shift = 0
    for plane in _planes(width):
        size = -(-count * plane // 8)
        packed = messages[:, begin : begin + size]
        digits = packed if plane == 8 else _digits(packed, plane)[:, :count]
        if width > 8:
            digits = digits.to(torch.int32)
        numbers = digits if numbers is None else numbers.bitwise_or_(digits.bitwise_left_shift_(shift))
        begin, shift = begin + size, shift + plane
    if numbers is None:  # a width of 0: there is nothing to know
        return torch.zeros(len(messages), count, dtype=torch.uint8, device=messages.device)
    return numbers


def _digits(packed: Tensor, plane: int) -> Tensor:
    """The numbers that the bytes (rows, bytes) of a plane hold, and those that fill up the last byte."""
    lanes = [packed >> (plane * lane) for lane in range(8 // plane)]
    return torch.stack(lanes, dim=1).bitwise_and_((1 << plane) - 1).flatten(1)


def trit_bytes(count: int) -> int:
    """How many bytes `count` numbers of 0, 1 and 2 take."""
    return -(-count // _TRITS)


def pack_trits(numbers: Tensor) -> Tensor:
    """Bytes, uint8 of shape (rows, trit_bytes), of numbers 0, 1 and 2, uint8 of shape (rows, count)."""
    lanes = _lanes(numbers, _TRITS)
    packed = lanes[:, 0].clone()
    for lane in range(1, _TRITS):
        packed += lanes[:, lane] * 3**lane
    return packed


def unpack_trits(messages: Tensor, count: int) -> Tensor:
    """The numbers 0, 1 and 2 of packed bytes; ValueError where a byte holds no five of them."""
    if bool((messages >= 3**_TRITS).any()):
        raise ValueError(f"a message has a byte above {3**_TRITS - 1}, which stands for no five ternary digits")
    lanes, rest = [], messages
    for _ in range(_TRITS):
        third = _third(rest)
        lanes.append(rest - 3 * third)
        rest = third
    return torch.stack(lanes, dim=1).flatten(1)[:, :count]


def _third(numbers: Tensor) -> Tensor:
    """A third of uint8 numbers below 243, rounded down: 171 / 512 is a third and less than 1/512 of them more."""
    return ((numbers.to(torch.int32) * 171) >> 9).to(torch.uint8)


def _planes(width: int) -> list[int]:
    """The widths of the planes that a number of so many bits is cut into, lowest bits first."""
    return [8] * (width // 8) + [plane for plane in (4, 2, 1) if width & plane]


def _lanes(numbers: Tensor, count: int) -> Tensor:
    """Numbers (rows, n) as (rows, count, bytes), filled up with zeros."""
    size = -(-numbers.shape[1] // count)
    missing = size * count - numbers.shape[1]
    filled = pad(numbers, (0, missing)) if missing else numbers
    return filled.reshape(len(numbers), count, size)
