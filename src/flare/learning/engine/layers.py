"""Layers for a stack of jobs, each with weights of its own, as batched matrix products.

An activation has the shape (jobs, channels, height, width, samples) or (jobs, features, samples). With the samples last
every layer is weights @ activation, a product for each job; its output already has the shape that the next layer
wants; and windows, shifts and maxima move runs of whole batches, so that memory is read and written in line.

Each layer has its derivative by hand, and nothing is recorded on the way. What follows a product and leaves its shape
almost as it is, a maximum of windows, a bias and ReLU, is one layer (`Finish`): on a GPU it is one kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn import functional

from flare.learning.engine.operations import Back, Onto, Operations, Pool, Windows

Shape = tuple[int, ...]
Kept = tuple[Tensor, ...]


class Layer(Protocol):
    """A function of weights and an activation, and its derivative."""

    @property
    def parameter(self) -> int | None:
        """Which parameter of the model the layer multiplies by or adds; None where it has none."""
        ...

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """The output, and what the way back needs."""
        ...

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """The gradient of the input, where it is asked for, from that of the output; and that of the parameter, with as
        many numbers as the parameter for each job, or added onto what may be the parameter itself."""
        ...


@final
@dataclass(frozen=True)
class Product:
    """A linear layer without its bias: y = W x."""

    operations: Operations
    parameter: int

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """(jobs, out, in) @ (jobs, in, samples)."""
        assert weight is not None
        return self.operations.multiply(weight, x), (x,)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """W^T dy, and dy x^T."""
        assert weight is not None
        return self.operations.dense_back(weight, dy, kept[0], onto, to_input=to_input)


@final
@dataclass(frozen=True)
class Convolution:
    """A convolution without its bias: y = W times the matrix of all windows."""

    operations: Operations
    parameter: int
    windows: Windows

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """Keeps the input with its padding."""
        y, kept, _ = self.finished(weight, x, Finish(self.operations), None)
        return y, kept

    def finished(self, weight: Tensor | None, x: Tensor, by: Finish, bias: Tensor | None) -> tuple[Tensor, Kept, Kept]:
        """What comes out of the layer that follows, and what each of the two keeps."""
        assert weight is not None
        pad_h, pad_w = self.windows.padding
        if pad_h or pad_w:
            x = functional.pad(x, (0, 0, pad_w, pad_w, pad_h, pad_h))
        y, which = self.operations.convolve(weight, x, self.windows, bias, by.pool, by.relu)
        return y, (x,), by.kept(y, which)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """dy through all windows backwards; and dy times the windows, transposed."""
        assert weight is not None
        dweight = self.operations.window_gradient(dy.flatten(2), kept[0], self.windows.kernel, self.windows.stride)
        return self.operations.convolve_back(weight, dy, self.windows) if to_input else None, dweight


@final
@dataclass(frozen=True)
class Finish:
    """The maximum or the mean of windows, then a bias for every channel or feature, then ReLU, each where it is there.

    The parameter is the bias.
    """

    operations: Operations
    pool: Pool | None = None
    parameter: int | None = None
    relu: bool = False

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """In one pass."""
        y, which = self.operations.finish(x, weight, self.pool, self.relu)
        return y, self.kept(y, which)

    def kept(self, y: Tensor, which: Tensor | None) -> Kept:
        """The output of ReLU, which tells where its input was positive, and which places were maxima."""
        return (y,) * self.relu + (() if which is None else (which,))

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """Both together."""
        y = kept[0] if self.relu else None
        which = kept[-1] if self.pool is not None and not self.pool.average else None
        return self.operations.finish_back(dy, y, which, self.pool, has_bias=weight is not None)


@final
class Tanh:
    """tanh(x)."""

    parameter: int | None = None

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """Keeps the output."""
        y = torch.tanh(x)
        return y, (y,)

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """dy (1 - y^2)."""
        return dy * (1.0 - kept[0] * kept[0]), None


@final
@dataclass(frozen=True)
class Flatten:
    """All that a sample has as one axis, in the order of torch."""

    shape: Shape
    parameter: int | None = None

    def forward(self, weight: Tensor | None, x: Tensor) -> tuple[Tensor, Kept]:
        """(jobs, ..., samples) -> (jobs, features, samples)."""
        return x.reshape(x.shape[0], math.prod(self.shape), x.shape[-1]), ()

    def backward(self, weight: Tensor | None, kept: Kept, dy: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """And back."""
        return dy.reshape(dy.shape[0], *self.shape, dy.shape[-1]), None
