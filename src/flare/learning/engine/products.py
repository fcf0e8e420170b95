"""The matrix products of layers, one for each job: weights by activations, and by the windows of a convolution.

`Plain` writes them with PyTorch alone and lays out every window as a column. `flare.learning.engine.kernels` has the
same for GPUs without the columns. The gradient of a dense layer is large and a product itself (`Outer`): it is left to
whoever steps by it whether to write it down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

    def add_outer_(self, weights: Tensor, dy: Tensor, x: Tensor, scale: Tensor) -> None:
        """Add scale (jobs, 1) times dy x^T, of dy (jobs, out, samples) and x (jobs, in, samples), onto weights
        (jobs, out in), in place; the rows of weights may lie apart. Never called in code that is compiled."""
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

    def add_outer_(self, weights: Tensor, dy: Tensor, x: Tensor, scale: Tensor) -> None:
        """The product first."""
        weights.addcmul_(torch.bmm(dy, x.transpose(1, 2)).flatten(1), scale)


@final
@dataclass(frozen=True, eq=False)
class Outer:
    """A gradient dy x^T of each job that has not been carried out: dy (jobs, out, samples), x (jobs, in, samples)."""

    products: Products
    dy: Tensor
    x: Tensor

    def made(self) -> Tensor:
        """Its numbers, (jobs, out, in)."""
        return self.products.multiply(self.dy, self.x.transpose(1, 2))

    def add_to_(self, weights: Tensor, scale: Tensor) -> None:
        """Add it, times scale (jobs, 1), onto weights (jobs, out in), in place."""
        self.products.add_outer_(weights, self.dy, self.x, scale)


Gradient = Tensor | Outer
"""Of a parameter, for each job."""


def made(gradients: Sequence[Gradient]) -> list[Tensor]:
    """All of them as numbers."""
    return [each.made() if isinstance(each, Outer) else each for each in gradients]


def window_columns(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """Every window of x (jobs, C, H, W, samples) as a column: (jobs, C kh kw, h w samples)."""
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # (jobs, C, h, w, samples, kh, kw)
    return windows.permute(0, 1, 5, 6, 2, 3, 4).flatten(4, 6).flatten(1, 3)
