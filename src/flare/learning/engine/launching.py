# mypy: ignore-errors
"""Triton kernels, launched, or compiled before that, many at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
import triton

_is_rehearsed: ContextVar[bool] = ContextVar("is_rehearsed", default=False)


def start(kernel, grid: tuple[int, ...], *arguments, **named) -> None:
    """Start a kernel on the device of its first argument, or only have it compiled where that is rehearsed."""
    device = arguments[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if _is_rehearsed.get():
            kernel.warmup(*arguments, grid=grid, **named)
        else:
            kernel[grid](*arguments, **named)


_MAX_COMPILERS = 16


@contextmanager
def rehearsal() -> Iterator[None]:
    """Nothing is computed in it: kernels that are started are compiled, all at once, where Triton can do that. What
    cannot be compiled is told when it is started in earnest."""
    with ThreadPoolExecutor(_MAX_COMPILERS) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        before = _is_rehearsed.set(True)
        try:
            yield
        finally:
            _is_rehearsed.reset(before)


CAN_REHEARSE = hasattr(triton, "AsyncCompileMode")


def ceil_div(size: int, part: int) -> int:
    """How many parts it takes. Triton's own, which is also for kernels, takes longer than it should at every launch."""
    return -(-size // part)


def power_of_2(size: int) -> int:
    """The least one that is not smaller."""
    return 1 << (size - 1).bit_length()
