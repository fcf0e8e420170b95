# mypy: ignore-errors
"""The n-th largest of many whole numbers, for each row of a matrix on a GPU, without sorting.

Numbers are read as digits of 8 bits, the highest first. One kernel counts, for each row, how often every value of a
digit occurs among the numbers that agree with what is known of the n-th largest. From the counts the next kernel reads
that digit, and how many of the numbers with it are still to be counted off. After four digits the number is known.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_DIGITS = tl.constexpr(4)
_VALUES = tl.constexpr(256)  # of a digit
_MANY = tl.constexpr(64)  # from this part of a chunk on, numbers are counted together
_CHUNK, _WARPS = 4096, 4  # the fastest of twelve pairs on an H200


@triton.jit
def _known(counts, row, n, digits: tl.constexpr):
    """The first digits of the n-th largest number of a row, as one number."""
    known = tl.zeros((), tl.int32)
    value = tl.arange(0, _VALUES)
    for i in tl.static_range(digits):
        count = tl.load(counts + (row * _DIGITS + i) * _VALUES + value)
        at_least = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # with this value or a larger one
        digit = tl.sum((at_least >= n).to(tl.int32), 0) - 1
        n -= tl.sum(tl.where(value == digit, at_least - count, 0), 0)
        known = known * _VALUES + digit
    return known


@triton.jit
def _count(numbers, counts, n, width, digits: tl.constexpr, size: tl.constexpr):
    row, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    at = chunk * size + tl.arange(0, size)
    number = tl.load(numbers + row * width + at, mask=at < width, other=0) & 0x7FFFFFFF
    upper = number >> (8 * (_DIGITS - 1 - digits))  # the digits that are known, and the one that is counted
    alike = (at < width) & ((upper >> 8) == _known(counts, row, n, digits))
    num_alike = tl.sum(alike.to(tl.int32), 0)
    into = counts + (row * _DIGITS + digits) * _VALUES
    if num_alike > size // _MANY:
        value = tl.arange(0, _VALUES)
        count = tl.histogram(tl.where(alike, upper & 0xFF, 0), _VALUES)
        count -= tl.where(value == 0, size - num_alike, 0)  # those that are not alike were counted as zeros
        tl.atomic_add(into + value, count, mask=count > 0, sem="relaxed")
    elif num_alike > 0:  # so few that they are sooner added one by one
        tl.atomic_add(into + (upper & 0xFF), 1, mask=alike, sem="relaxed")


@triton.jit
def _answer(counts, out, n):
    row = tl.program_id(0).to(tl.int64)
    tl.store(out + row, _known(counts, row, n, _DIGITS))


def nth_largest(numbers: Tensor, n: int) -> Tensor:
    """The n-th largest number of each row of int32 (rows, numbers), whose sign bits are not looked at: (rows, 1)."""
    rows, width = numbers.shape
    numbers = numbers.contiguous()
    counts = torch.zeros(rows, _DIGITS.value, _VALUES.value, dtype=torch.int32, device=numbers.device)
    out = torch.empty(rows, 1, dtype=torch.int32, device=numbers.device)
    grid = (triton.cdiv(width, _CHUNK), rows)
    for digits in range(_DIGITS.value):
        _count[grid](numbers, counts, n, width, digits, _CHUNK, num_warps=_WARPS)
    _answer[(rows,)](counts, out, n)
    return out
