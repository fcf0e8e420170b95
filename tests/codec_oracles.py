"""Plain versions of the codecs, one number at a time, as their docstrings say it: what the fast ones must equal."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

F32 = np.float32
MASK = (1 << 64) - 1


def splitmix64(key: int, count: int) -> list[int]:
    """Steele, Lea and Flood (2014), Figure 15, with its constants."""
    outputs, state = [], key & MASK
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


def draws(key: int, count: int) -> list[int]:
    """24 bits of the lower half of each output, then of its upper half."""
    halves = [half for word in splitmix64(key, (count + 1) // 2) for half in (word & 0xFFFFFFFF, word >> 32)]
    return [half & 0xFFFFFF for half in halves[:count]]


def pack(numbers: Sequence[int], width: int) -> bytes:
    """Planes of 8, 4, 2 and 1 bits, lowest first; byte j of a plane holds numbers j, j + q, ..."""
    planes, left = [], width
    for plane in [8] * (width // 8) + [4, 2, 1]:
        if plane <= left:
            planes.append(plane)
            left -= plane
    out, shift = bytearray(), 0
    for plane in planes:
        size = math.ceil(len(numbers) * plane / 8)
        part = bytearray(size)
        for i, number in enumerate(numbers):
            part[i % size] |= ((number >> shift) & (2**plane - 1)) << (plane * (i // size))
        out += part
        shift += plane
    return bytes(out)


def blocks(x: np.ndarray, block: int) -> list[np.ndarray]:
    return [x[begin : begin + block] for begin in range(0, len(x), block)]


def level(entry: np.float32, scale: np.float32, levels: int) -> np.float32:
    return F32(F32(entry / scale) * F32(levels)) if scale > 0 else F32(0.0)


def quantised(x: np.ndarray, key: int, block: int, levels: int) -> tuple[list[np.float32], list[int]]:
    """Scales, and l + s of each entry."""
    drawn = iter(draws(key, len(x)))
    scales, codes = [], []
    for part in blocks(x, block):
        scales.append(max(abs(entry) for entry in part))
        for entry in part:
            exact = level(entry, scales[-1], levels)
            below = math.floor(exact)
            fraction = F32(exact - F32(below))
            codes.append(below + (next(drawn) < float(fraction) * 2**24) + levels)
    return scales, codes


def floats(numbers: Sequence[np.float32]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def qsgd(x: np.ndarray, key: int, bits: int, block: int) -> bytes:
    scales, codes = quantised(x, key, block, 2 ** (bits - 1) - 1)
    return floats(scales) + pack(codes, bits)


def ternary(x: np.ndarray, key: int, block: int) -> bytes:
    scales, codes = quantised(x, key, block, 1)
    size = math.ceil(len(x) / 5)
    out = [0] * size
    for i, code in enumerate(codes):
        out[i % size] += code * 3 ** (i // size)
    return floats(scales) + bytes(out)


def by_halves(numbers: list[float]) -> float:
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [a + b for a, b in zip(numbers[:half], numbers[half:], strict=False)] + numbers[2 * half :]
    return numbers[0]


def sign(x: np.ndarray, block: int) -> bytes:
    filled = [[abs(float(e)) for e in part] + [0.0] * (min(block, len(x)) - len(part)) for part in blocks(x, block)]
    sizes = [len(part) for part in blocks(x, block)]
    scales = [F32(by_halves(part) / size) for part, size in zip(filled, sizes, strict=True)]
    return floats(scales) + pack([int(entry >= 0) for entry in x], 1)


def float16(x: np.ndarray) -> bytes:
    exponent = math.frexp(max(abs(float(entry)) for entry in x))[1]
    return (
        struct.pack("<h", exponent)
        + np.array(
            [np.float16(F32(math.ldexp(float(entry), 15 - exponent))) for entry in x], dtype=np.float16
        ).tobytes()
    )


def topk(x: np.ndarray, share: float) -> bytes:
    count = max(1, math.ceil(Fraction(str(share)) * len(x)))
    places = sorted(sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))[:count])
    return floats([x[i] for i in places]) + shortest_places(places, len(x))


def shortest_places(places: list[int], n: int) -> bytes:
    """Every way is tried; the first of the shortest."""
    if len(places) == n:
        return b""
    ways = [pack([int(i in places) for i in range(n)], 1)]
    for low in range(32):
        row = [0] * (len(places) + ((n - 1) >> low))
        for order, place in enumerate(places):
            row[(place >> low) + order] = 1
        ways.append(pack([place % 2**low for place in places], low) + pack(row, 1))
    return min(ways, key=len)


def mean_and_error(x: np.ndarray, block: int, levels: int) -> tuple[list[Fraction], Fraction]:
    """E Q(x) and E|Q(x) - x|^2, exactly, over all draws: `up` of 2^24 are below the fraction."""
    means, error = [], Fraction(0)
    for part in blocks(x, block):
        scale = max(abs(entry) for entry in part)
        for entry in part:
            exact = level(entry, scale, levels)
            below = math.floor(exact)
            up = min(math.ceil(float(F32(exact - F32(below))) * 2**24), 2**24)
            ways = [(Fraction(2**24 - up, 2**24), below), (Fraction(up, 2**24), below + 1)]
            received = [(p, Fraction(float(F32(F32(F32(at) / F32(levels)) * scale)))) for p, at in ways if p]
            means.append(sum((p * value for p, value in received), Fraction(0)))
            error += sum((p * (value - Fraction(float(entry))) ** 2 for p, value in received), Fraction(0))
    return means, error
