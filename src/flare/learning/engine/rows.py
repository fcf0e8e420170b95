# mypy: ignore-errors
"""Sums over the rows of a stack of jobs, and their ways, as Triton kernels, for GPUs.

Sums are of float64, added up in an order that follows from the length of a row alone: what becomes of a row depends on
no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.learning.engine.launching import ceil_div, power_of_2, start
from flare.learning.engine.stack import Starts

_AT_ONCE, _SQUARES_AT_ONCE = 1024, 4096


@triton.jit
def _way(stack, starts, index, moved, sums, row_length, columns, parts, block: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = part * block + tl.arange(0, block)
    inside = column < row_length  # a number that can be divided by four: as many are read at once
    start = tl.load(starts + tl.load(index + row) * row_length + column, mask=inside, other=0.0)
    numbers = tl.load(stack + row * row_length + column, mask=inside, other=0.0) - start
    tl.store(moved + row * row_length + column, numbers, mask=inside)
    exact = tl.where(column < columns, numbers, 0.0).to(tl.float64)
    tl.store(sums + row * parts + part, tl.sum(exact * exact))


@triton.jit(do_not_specialize=["parts", "first"])
def _squares(numbers, sums, row_stride, columns, parts, first, block: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = part * block + tl.arange(0, block)
    exact = tl.load(numbers + row * row_stride + column, mask=column < columns, other=0.0).to(tl.float64)
    tl.store(sums + row * parts + first + part, tl.sum(exact * exact))


@triton.jit
def _row_lengths(sums, lengths, parts, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, block)
    tl.store(lengths + row, tl.sqrt(tl.sum(tl.load(sums + row * parts + part, mask=part < parts, other=0.0))))


@triton.jit
def _row_sums(numbers, sums, columns: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((block,), dtype=tl.float64)
    for begin in range(0, columns, block):
        column = begin + tl.arange(0, block)
        total += tl.load(numbers + row * columns + column, mask=column < columns, other=0.0)
    tl.store(sums + row, tl.sum(total))


def moved(starts: Starts, stack: Tensor, num_weights: int) -> tuple[Tensor, Tensor]:
    """As of `Program.moved`, in one pass over the stack, which stays as it is."""
    jobs, row_length = stack.shape
    parts = ceil_div(num_weights, _SQUARES_AT_ONCE)
    way = torch.empty_like(stack)
    sums = torch.empty((jobs, parts), device=stack.device, dtype=torch.float64)
    lengths = torch.empty(jobs, device=stack.device, dtype=torch.float64)
    tensors = (stack, starts.rows, starts.index, way, sums)
    start(_way, (parts, jobs), *tensors, row_length, num_weights, parts, block=_SQUARES_AT_ONCE)
    start(_row_lengths, (jobs,), sums, lengths, parts, block=power_of_2(parts))
    return way[:, :num_weights], lengths


def sums_of(numbers: Tensor) -> Tensor:
    """The sum of each row of (jobs, columns), of numbers in float64."""
    jobs, columns = numbers.shape
    numbers = numbers.contiguous()
    sums = torch.empty(jobs, device=numbers.device, dtype=numbers.dtype)
    start(_row_sums, (jobs,), numbers, sums, columns=columns, block=_AT_ONCE)
    return sums


def lengths_of(gradients: Sequence[Tensor]) -> Tensor:
    """The length of each job's gradient, given by parameter, each (jobs, ...); (jobs,), summed in float64."""
    jobs = len(gradients[0])
    flat = [each.reshape(jobs, -1) for each in gradients]
    parts = [ceil_div(each.shape[1], _SQUARES_AT_ONCE) for each in flat]
    sums = torch.empty((jobs, sum(parts)), device=flat[0].device, dtype=torch.float64)
    lengths = torch.empty(jobs, device=flat[0].device, dtype=flat[0].dtype)
    for each, count, end in zip(flat, parts, itertools.accumulate(parts), strict=True):
        sizes = (each.stride(0), each.shape[1], sum(parts), end - count)
        start(_squares, (count, jobs), each, sums, *sizes, block=_SQUARES_AT_ONCE)
    start(_row_lengths, (jobs,), sums, lengths, sum(parts), block=power_of_2(sum(parts)))
    return lengths
