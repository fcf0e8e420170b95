"""What layers are made of, for a stack of jobs: matrix products of each job's own, and what happens between them.

`Plain` writes all of it with PyTorch alone. `flare.learning.engine.between` has the same in kernels for GPUs. The
gradient of a dense layer is large: where it has a place to go (`Onto`), it is added there as it is made, and never
written down. Activations have the shape (jobs, channels, height, width, samples) or (jobs, features, samples).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional

from flare.learning.engine.terms import Anchors, contrast_gradient

Pair = tuple[int, int]


class Windows(NamedTuple):
    """The windows of a convolution on an activation that is `side` high and wide, its padding included."""

    kernel: Pair
    stride: Pair
    padding: Pair
    side: Pair

    @property
    def out_side(self) -> Pair:
        """How many there are, one below the other and side by side."""
        high, wide = (
            (side - kernel) // step + 1 for side, kernel, step in zip(self.side, self.kernel, self.stride, strict=True)
        )
        return high, wide


class Pool(NamedTuple):
    """The maximum or the mean of windows that lie side by side; what is left over at the edges is dropped."""

    kernel: Pair
    side: Pair
    average: bool = False

    @property
    def out_side(self) -> Pair:
        """Height and width of the output."""
        return self.side[0] // self.kernel[0], self.side[1] // self.kernel[1]


class Onto(NamedTuple):
    """Where gradients go as they are made: each job's, times its scale, is added onto the weights, in place.

    weights   rows of weights as a program takes them, or those of a parameter as a layer does
    scale     (jobs, 1)
    """

    weights: Tensor
    scale: Tensor


Gradient = Tensor | None
"""Of a parameter, for each job; None where it went onto weights, or was not asked for."""
Back = tuple[Tensor | None, Gradient]
"""The gradients of a layer's input, None where it was not asked for, and of its parameter."""


class Operations(Protocol):
    """What programs ask for. A job's answer is made of its own row alone."""

    samples_unit: int
    """Batches whose size is a multiple of this are read the fastest."""

    def writes_windows(self, windows: Windows) -> bool:
        """Whether all windows of an activation are written down on the way forward or back, which takes memory."""
        ...

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """(jobs, rows, depth) by (jobs, depth, columns)."""
        ...

    def convolve(
        self, weight: Tensor, x: Tensor, windows: Windows, bias: Tensor | None, pool: Pool | None, relu: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(jobs, out, C kh kw) by all windows of x (jobs, C, H, W, samples), its padding included, and of that what
        `finish` answers: (jobs, out, h, w, samples)."""
        ...

    def convolve_back(self, weight: Tensor, dy: Tensor, windows: Windows) -> Tensor:
        """The gradient of x there, without its padding, from that of the product, dy (jobs, out, h, w, samples)."""
        ...

    def window_gradient(self, dy: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """The gradient of `weight` there: dy (jobs, out, h w samples) by the windows, transposed."""
        ...

    def dense_back(self, weight: Tensor, dy: Tensor, x: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """The gradients of x (jobs, in, samples) and of weight (jobs, out, in) in weight @ x, from that of the answer,
        dy (jobs, out, samples): the first where it is asked for, the second where it does not go onto weights. Those
        may be `weight` itself."""
        ...

    def finish(self, x: Tensor, bias: Tensor | None, pool: Pool | None, relu: bool) -> tuple[Tensor, Tensor | None]:
        """The windows' maximum or mean, plus bias (jobs, channels), and of that what is positive, each where it is
        asked for; and which place of each window was its maximum, by rows: of equal ones the first, and nan is larger
        than everything."""
        ...

    def finish_back(
        self, dy: Tensor, y: Tensor | None, which: Tensor | None, pool: Pool | None, *, has_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of x and of the bias there, from that of the answer; y is the answer where it was `relu`."""
        ...

    def cross_entropy(self, logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Each job's loss (jobs,), the sum of its samples' by their shares (jobs, samples), and the gradient of the
        logits (jobs, classes, samples)."""
        ...

    def with_contrast(self, dz: Tensor, z: Tensor, anchors: Anchors, shares: Tensor) -> Tensor:
        """dz plus the gradient of a contrast with respect to z, as `terms.contrast_gradient`; may write into dz."""
        ...


@final
class Plain:
    """By PyTorch."""

    samples_unit = 4

    def writes_windows(self, windows: Windows) -> bool:
        """As columns."""
        return True

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """One batched product."""
        return torch.bmm(a, b)

    def convolve(
        self, weight: Tensor, x: Tensor, windows: Windows, bias: Tensor | None, pool: Pool | None, relu: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One after the other."""
        y = self.multiply_windows(weight, x, windows.kernel, windows.stride)
        return self.finish(y.view(*y.shape[:2], *windows.out_side, x.shape[-1]), bias, pool, relu)

    def convolve_back(self, weight: Tensor, dy: Tensor, windows: Windows) -> Tensor:
        """The gradient of the windows, added back where they came from."""
        dwindows = self.multiply(weight.transpose(1, 2), dy.flatten(2))
        return self.add_windows(dwindows, windows, dy.shape[-1])

    def multiply_windows(self, weight: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """(jobs, out, C kh kw) by all windows of x (jobs, C, H, W, samples), as columns: (jobs, out, h w samples)."""
        return torch.bmm(weight, window_columns(x, kernel, stride))

    def window_gradient(self, dy: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """By the columns, made again: they are many times larger than x, and keeping them would cost memory."""
        return torch.bmm(dy, window_columns(x, kernel, stride).transpose(1, 2))

    def add_windows(self, dwindows: Tensor, windows: Windows, samples: int) -> Tensor:
        """The gradient of an activation without its padding, (jobs, C, H, W, samples): that of its windows,
        (jobs, C kh kw, h w samples), each number added back where it came from. First along rows, then along columns.
        """
        (pad_h, pad_w), (height, width), step = windows.padding, windows.side, windows.stride
        parts = dwindows.view(len(dwindows), -1, *windows.kernel, *windows.out_side, samples)
        rows = _overlap_add(parts.unbind(3), dim=4, step=step[1], size=width)  # (jobs, C, kh, h, W, samples)
        dx = _overlap_add(rows.unbind(2), dim=2, step=step[0], size=height)  # (jobs, C, H, W, samples)
        return dx[:, :, pad_h : height - pad_h, pad_w : width - pad_w]

    def dense_back(self, weight: Tensor, dy: Tensor, x: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """One product after the other."""
        dx = self.multiply(weight.transpose(1, 2), dy) if to_input else None
        gradient = self.multiply(dy, x.transpose(1, 2))
        if onto is None:
            return dx, gradient
        onto.weights.addcmul_(gradient, onto.scale[:, :, None])
        return dx, None

    def finish(self, x: Tensor, bias: Tensor | None, pool: Pool | None, relu: bool) -> tuple[Tensor, Tensor | None]:
        """One after the other."""
        which = None
        if pool is not None:
            x, which = _pooled(x, pool)
        if bias is not None:
            x = x + bias.reshape(*bias.shape, *(1,) * (x.dim() - 2))
        return torch.relu(x) if relu else x, which

    def finish_back(
        self, dy: Tensor, y: Tensor | None, which: Tensor | None, pool: Pool | None, *, has_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """One after the other."""
        if y is not None:
            dy = torch.where(y <= 0, 0.0, dy)
        dbias = dy.flatten(2).sum(2) if has_bias else None
        return dy if pool is None else _pooled_back(dy, which, pool), dbias

    def cross_entropy(self, logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """By the logarithms of the probabilities."""
        log_probability = functional.log_softmax(logits, dim=1)
        classes = torch.arange(logits.shape[1], device=logits.device)[:, None]
        hit = labels[:, None, :] == classes  # (jobs, classes, samples)
        losses = -(torch.where(hit, log_probability, 0.0).sum(1) * shares).sum(1)
        return losses, (log_probability.exp() - hit.float()) * shares[:, None, :]

    def with_contrast(self, dz: Tensor, z: Tensor, anchors: Anchors, shares: Tensor) -> Tensor:
        """The sum."""
        return dz + contrast_gradient(z, anchors, shares)


def all_made(gradients: Sequence[Gradient]) -> list[Tensor]:
    """Gradients of which none went onto weights."""
    made = [each for each in gradients if each is not None]
    assert len(made) == len(gradients)
    return made


def window_columns(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """Every window of x (jobs, C, H, W, samples) as a column: (jobs, C kh kw, h w samples)."""
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # (jobs, C, h, w, samples, kh, kw)
    return windows.permute(0, 1, 5, 6, 2, 3, 4).flatten(4, 6).flatten(1, 3)


def _overlap_add(parts: Sequence[Tensor], *, dim: int, step: int, size: int) -> Tensor:
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


def _pooled(x: Tensor, pool: Pool) -> tuple[Tensor, Tensor | None]:
    (kh, kw), (high, wide) = pool.kernel, pool.out_side
    windows = x[:, :, : high * kh, : wide * kw].view(*x.shape[:2], high, kh, wide, kw, x.shape[-1])
    if pool.average:
        return windows.mean((3, 5)), None
    best = windows[:, :, :, 0, :, 0]
    which = torch.zeros_like(best, dtype=torch.uint8)
    for place in range(1, kh * kw):
        value = windows[:, :, :, place // kw, :, place % kw]
        better = (value > best) | value.isnan()
        best, which = torch.where(better, value, best), torch.where(better, place, which)
    return best, which.to(torch.uint8)


def _pooled_back(dy: Tensor, which: Tensor | None, pool: Pool) -> Tensor:
    """To the place that was the maximum, or in equal parts to all."""
    (kh, kw), (high, wide), (height, width) = pool.kernel, pool.out_side, pool.side
    spread = dy[:, :, :, None, :, None]
    if which is None:
        dx = (spread / (kh * kw)).expand(*dy.shape[:3], kh, wide, kw, dy.shape[-1])
    else:
        places = torch.arange(kh * kw, dtype=torch.uint8, device=dy.device).view(kh, 1, kw, 1)
        dx = torch.where(which[:, :, :, None, :, None] == places, spread, 0.0)
    dx = dx.flatten(4, 5).flatten(2, 3)
    if (high * kh, wide * kw) == (height, width):
        return dx
    return functional.pad(dx, (0, 0, 0, width - wide * kw, 0, height - high * kh))
