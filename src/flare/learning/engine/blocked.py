"""Logits of a network that begins with convolutions, on a CPU: PyTorch's bits, sooner.

PyTorch's convolutions on a CPU are oneDNN's, which arranges channels in blocks for its vector instructions. PyTorch has
every layer's output put back into rows, and then searches for maxima of windows entry by entry: in the paper's network
as much work as the convolutions. Here the images stay in oneDNN's arrangement until they are flattened.

The kernels of the convolutions are the same, so the bits are. That is not taken on trust: which kernel serves depends
on processor, version and shape, so the first batch of each shape is computed both ways, gradients included, and where a
bit differs the shape is computed in the plain way from then on. So are batches on which an output might not be finite,
as oneDNN passes over what is not a number where it searches for maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

_MAX_SIZE = 1e30  # no output or gradient may be larger than that, by a bound from the largest weight and input
_BLOCKED = (nn.Conv2d, nn.MaxPool2d, nn.ReLU)
_FLAT = (nn.Flatten, nn.Linear, nn.ReLU)


@final
class BlockedLogits:
    """A module as a function of samples (batch, ...); `weights` is the vector that its parameters are views of."""

    def __init__(self, module: nn.Module, weights: Tensor) -> None:
        self._module, self._weights = module, weights
        self._parameters = [each for each in module.parameters() if each.requires_grad]
        self._first, self._last = _split(module) if weights.device.type == "cpu" else ([], [])
        self._same: dict[tuple[tuple[int, ...], bool], bool] = {}

    def __call__(self, x: Tensor) -> Tensor:
        """The logits, (batch, classes)."""
        if not self._first or len(x) == 0 or not self._surely_finite(x):
            return self._plain(x)
        kind = (tuple(x.shape), torch.is_grad_enabled())
        if kind not in self._same:
            self._same[kind] = self._gives_the_same(x)
        return self._blocked(x) if self._same[kind] else self._plain(x)

    def _plain(self, x: Tensor) -> Tensor:
        logits: Tensor = self._module(x)
        return logits

    def _blocked(self, x: Tensor) -> Tensor:
        x = x.to_mkldnn()
        for layer in self._first:
            x = functional.max_pool2d(x, 2, 2) if isinstance(layer, nn.MaxPool2d) else layer(x)
        x = x.to_dense()
        for layer in self._last:
            x = layer(x)
        return x

    def _surely_finite(self, x: Tensor) -> bool:
        """Whether no output of a layer, and no gradient of one, can be above `_MAX_SIZE`; False where one is no number.

        With weights up to w and inputs up to b, a sum of n products and a number beside them is at most w (1 + n b).
        """
        weight, size, back = _largest(self._weights), _largest(x), 1.0
        for layer in (*self._first, *self._last):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                size = weight * (1.0 + layer.weight[0].numel() * size)
                back = max(back, back * weight * layer.weight.numel())
        return size * back < _MAX_SIZE

    def _gives_the_same(self, x: Tensor) -> bool:
        try:
            found = [self._outcome(logits) for logits in (self._blocked(x), self._plain(x))]
        except RuntimeError:  # a shape or a processor for which oneDNN has no such kernel
            return False
        return all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))

    def _outcome(self, logits: Tensor) -> Sequence[Tensor]:
        """The logits, and where they are differentiated, gradients of a loss."""
        if not torch.is_grad_enabled():
            return [logits]
        loss = functional.cross_entropy(logits, torch.arange(len(logits)) % logits.shape[1])
        return [logits, *torch.autograd.grad(loss, self._parameters)]


def _split(module: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """The layers that can work on blocks of channels, and those after them; nothing for other networks than chains."""
    layers = list(module) if type(module) is nn.Sequential and _untouched(module) else []
    count = next((i for i, layer in enumerate(layers) if not _can_be_blocked(layer)), len(layers))
    first, last = layers[:count], layers[count:]
    sound = bool(first and last) and type(first[0]) is nn.Conv2d and type(last[0]) is nn.Flatten
    return (first, last) if sound and all(type(layer) in _FLAT for layer in last) else ([], [])


def _can_be_blocked(layer: nn.Module) -> bool:
    if type(layer) not in _BLOCKED or not _untouched(layer):
        return False
    if isinstance(layer, nn.ReLU):
        return not layer.inplace
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros" and layer.groups == 1
    assert isinstance(layer, nn.MaxPool2d)
    sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    plain = all(given in (one, (one, one)) for given, one in zip(sizes, (2, 2, 0, 1), strict=True))
    return plain and not layer.ceil_mode and not layer.return_indices


def _untouched(layer: nn.Module) -> bool:
    """Whether nobody has put a hook on it, which would see another arrangement."""
    return not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def _largest(numbers: Tensor) -> float:
    """The largest absolute entry; NaN where one is not a number."""
    with torch.no_grad():
        return max(float(numbers.amax()), -float(numbers.amin()))
