# mypy: ignore-errors
"""Sums of vectors, many sums at once, as a Triton kernel, for GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.learning.engine.launching import ceil_div, start
from flare.learning.engine.tensor_data import onto

_AT_ONCE = 1024


@triton.jit
def _add_up(places, begins, sums, columns, block: tl.constexpr):
    row = tl.program_id(1)
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = column < columns
    number, end = tl.load(begins + row), tl.load(begins + row + 1)
    vector = tl.load(places + number).to(tl.pointer_type(tl.float32))
    total = tl.load(vector + column, mask=inside, other=0.0).to(tl.float64)
    number += 1
    while number < end:
        vector = tl.load(places + number).to(tl.pointer_type(tl.float32))
        total += tl.load(vector + column, mask=inside, other=0.0).to(tl.float64)
        number += 1
    tl.store(tl.load(sums + row).to(tl.pointer_type(tl.float64)) + column, total, mask=inside)


def sums_of(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The sum of each group of vectors, in float64: added up in their order, to the bits of one addition after another.

    Groups have one vector at least; all vectors are of float32, of one length, without gaps and on one device.
    """
    device, columns = groups[0][0].device, len(groups[0][0])
    sums = [torch.empty(columns, dtype=torch.float64, device=device) for _ in groups]
    tables = (
        _places([vector for group in groups for vector in group]),
        torch.tensor([0, *itertools.accumulate(map(len, groups))]),
        _places(sums),
    )
    grid = (ceil_div(columns, _AT_ONCE), len(groups))
    start(_add_up, grid, *(onto(table, device) for table in tables), columns, block=_AT_ONCE)
    return sums


def _places(vectors: Sequence[Tensor]) -> Tensor:
    """Where they lie in the memory."""
    return torch.tensor([vector.data_ptr() for vector in vectors])
