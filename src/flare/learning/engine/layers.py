"""Layers for a stack of jobs, each with weights of its own, as batched matrix products.

An activation has the shape (jobs, channels, height, width, samples) or (jobs, features, samples). With the samples last
every layer is weights @ activation, a product for each job; its output already has the shape that the next layer
wants; and windows, shifts and maxima move runs of whole batches, so that memory is read and written in line.

Each layer has its derivative by hand, and nothing is recorded on the way: a pass forward and back is one plain function
of tensors, which `torch.compile` turns into matrix products with fused kernels between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn import functional

from flare.learning.engine.products import Pair, Products

Shape = tuple[int, ...]
Kept = tuple[Tensor, ...]
Factors = tuple[Tensor, ...]
"""The gradient of a parameter (jobs, ...), or dy (jobs, out, samples) and x (jobs, in, samples): it is dy x^T."""


class Layer(Protocol):
    """A function of weights and an activation, and its derivative."""

    @property
    def parameter(self) -> int | None:
        """Which parameter of the model the layer multiplies by or adds; None where it has none."""
        ...

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """The output, and what the way back needs."""
        ...

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """The gradient of the input from that of the output."""
        ...

    def weight_gradient(self, kept: Kept, dy: Tensor) -> Factors:
        """The gradient of the parameter, with as many numbers as the parameter for each job."""
        ...


class _Plain:
    """What layers without a parameter share."""

    parameter: int | None = None

    def weight_gradient(self, kept: Kept, dy: Tensor) -> Factors:
        """There is none."""
        raise NotImplementedError("a layer without a parameter has no gradient of one")


@final
@dataclass(frozen=True)
class Product:
    """A linear layer without its bias: y = W x."""

    products: Products
    parameter: int

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """(jobs, out, in) @ (jobs, in, samples)."""
        assert weight is not None
        return self.products.multiply(weight, x), (x,)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """W^T dy."""
        assert weight is not None
        return self.products.multiply(weight.transpose(1, 2), dy)

    def weight_gradient(self, kept: Kept, dy: Tensor) -> Factors:
        """dy x^T, not carried out."""
        return dy, kept[0]


@final
@dataclass(frozen=True)
class Convolution:
    """A convolution without its bias: y = W times the matrix of all windows."""

    products: Products
    parameter: int
    kernel: Pair
    stride: Pair
    padding: Pair
    side: Pair  # height and width of the input with its padding

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """Keeps the input with its padding."""
        assert weight is not None
        pad_h, pad_w = self.padding
        if pad_h or pad_w:
            x = functional.pad(x, (0, 0, pad_w, pad_w, pad_h, pad_h))
        y = self.products.multiply_windows(weight.flatten(2), x, self.kernel, self.stride)
        return y.view(*y.shape[:2], *self.out_side, x.shape[-1]), (x,)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """The gradient of the windows, each added back where it came from: first along rows, then along columns."""
        assert weight is not None
        (pad_h, pad_w), (height, width), samples = self.padding, self.side, dy.shape[-1]
        dwindows = self.products.multiply(weight.flatten(2).transpose(1, 2), dy.flatten(2))
        parts = dwindows.view(dy.shape[0], -1, *self.kernel, *self.out_side, samples)
        rows = overlap_add(parts.unbind(3), dim=4, step=self.stride[1], size=width)  # (jobs, C, kh, h, W, samples)
        dx = overlap_add(rows.unbind(2), dim=2, step=self.stride[0], size=height)  # (jobs, C, H, W, samples)
        return dx[:, :, pad_h : height - pad_h, pad_w : width - pad_w]

    def weight_gradient(self, kept: Kept, dy: Tensor) -> Factors:
        """dy times the windows, transposed."""
        return (self.products.window_gradient(dy.flatten(2), kept[0], self.kernel, self.stride),)

    @property
    def out_side(self) -> Pair:
        """Height and width of the output."""
        high, wide = (
            (side - kernel) // step + 1 for side, kernel, step in zip(self.side, self.kernel, self.stride, strict=True)
        )
        return high, wide


@final
@dataclass(frozen=True)
class Bias:
    """Adds a number to every channel or feature."""

    parameter: int

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """y = x + b."""
        assert weight is not None
        return x + weight.reshape(*weight.shape, *(1,) * (x.dim() - 2)), ()

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """As it came."""
        return dy

    def weight_gradient(self, kept: Kept, dy: Tensor) -> Factors:
        """The sum over places and samples."""
        return (dy.flatten(2).sum(2),)


@final
class ReLU(_Plain):
    """max(x, 0)."""

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """Keeps the output, which tells where the input was positive."""
        y = torch.relu(x)
        return y, (y,)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """Zero where the output is."""
        return torch.where(kept[0] <= 0, 0.0, dy)


@final
class Tanh(_Plain):
    """tanh(x)."""

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """Keeps the output."""
        y = torch.tanh(x)
        return y, (y,)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """dy (1 - y^2)."""
        return dy * (1.0 - kept[0] * kept[0])


@final
@dataclass(frozen=True)
class Flatten(_Plain):
    """All that a sample has as one axis, in the order of torch."""

    shape: Shape

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """(jobs, ..., samples) -> (jobs, features, samples)."""
        return x.reshape(x.shape[0], math.prod(self.shape), x.shape[-1]), ()

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """And back."""
        return dy.reshape(dy.shape[0], *self.shape, dy.shape[-1])


@final
@dataclass(frozen=True)
class Pool(_Plain):
    """The maximum or the mean of windows that lie side by side; what is left over at the edges is dropped."""

    kernel: Pair
    side: Pair
    average: bool = False

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """Of equal values the first one counts, as in torch; nan is larger than everything."""
        (kh, kw), (high, wide) = self.kernel, self.out_side
        windows = x[:, :, : high * kh, : wide * kw].view(*x.shape[:2], high, kh, wide, kw, x.shape[-1])
        if self.average:
            return windows.mean((3, 5)), ()
        best = windows[:, :, :, 0, :, 0]
        which = torch.zeros_like(best, dtype=torch.uint8)
        for place in range(1, kh * kw):
            value = windows[:, :, :, place // kw, :, place % kw]
            better = (value > best) | value.isnan()
            best, which = torch.where(better, value, best), torch.where(better, place, which)
        return best, (which.to(torch.uint8),)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor) -> Tensor:
        """To the place that was the maximum, or in equal parts to all."""
        (kh, kw), (high, wide), (height, width) = self.kernel, self.out_side, self.side
        spread = dy[:, :, :, None, :, None]
        if self.average:
            dx = (spread / (kh * kw)).expand(*dy.shape[:3], kh, wide, kw, dy.shape[-1])
        else:
            places = torch.arange(kh * kw, dtype=torch.uint8, device=dy.device).view(kh, 1, kw, 1)
            dx = torch.where(kept[0][:, :, :, None, :, None] == places, spread, 0.0)
        dx = dx.flatten(4, 5).flatten(2, 3)
        if (high * kh, wide * kw) == (height, width):
            return dx
        return functional.pad(dx, (0, 0, 0, width - wide * kw, 0, height - high * kh))

    @property
    def out_side(self) -> Pair:
        """Height and width of the output."""
        return self.side[0] // self.kernel[0], self.side[1] // self.kernel[1]


def overlap_add(parts: Sequence[Tensor], *, dim: int, step: int, size: int) -> Tensor:
    """The sum of the parts along the axis `dim` of length `size`: entry p of part i lies at place i + step * p."""
    behind = (0, 0) * (parts[0].dim() - dim - 1)  # functional.pad counts from the last axis
    total = None
    for shift, part in enumerate(parts):
        if step > 1:
            part = functional.pad(part.unsqueeze(dim + 1), (*behind, 0, step - 1)).flatten(dim, dim + 1)
        placed = functional.pad(part, (*behind, shift, size - shift - part.shape[dim]))
        total = placed if total is None else total + placed
    assert total is not None
    return total
