"""The matrix products of layers, one for each job: weights by activations, and by the windows of a convolution.

`Plain` writes them with PyTorch alone and lays out every window as a column. `flare.learning.engine.kernels` has the
same for GPUs without the columns.
"""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import Tensor

Pair = tuple[int, int]


class Products(Protocol):
    """What layers ask for. A job's answer is made of its own row alone."""

    samples_unit: int
    """Batches whose size is a multiple of this are read the fastest."""

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """(jobs, rows, depth) by (jobs, depth, columns)."""
        ...

    def multiply_windows(self, weight: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """(jobs, out, C kh kw) by all windows of x (jobs, C, H, W, samples): (jobs, out, h w samples)."""
        ...

    def window_gradient(self, dy: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """The gradient of `weight` there: dy (jobs, out, h w samples) by the windows, transposed."""
        ...


@final
class Plain:
    """By PyTorch."""

    samples_unit = 4

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """One batched product."""
        return torch.bmm(a, b)

    def multiply_windows(self, weight: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """By the columns."""
        return torch.bmm(weight, window_columns(x, kernel, stride))

    def window_gradient(self, dy: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """By the columns, made again: they are many times larger than x, and keeping them would cost memory."""
        return torch.bmm(dy, window_columns(x, kernel, stride).transpose(1, 2))


def window_columns(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """Every window of x (jobs, C, H, W, samples) as a column: (jobs, C kh kw, h w samples)."""
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # (jobs, C, h, w, samples, kh, kw)
    return windows.permute(0, 1, 5, 6, 2, 3, 4).flatten(4, 6).flatten(1, 3)
