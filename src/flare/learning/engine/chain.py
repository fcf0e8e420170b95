"""A chain of known layers as one pass forward and back for a stack of jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from flare.learning.engine.layers import (
    Bias,
    Convolution,
    Factors,
    Flatten,
    Kept,
    Layer,
    Pool,
    Product,
    ReLU,
    Shape,
    Tanh,
)
from flare.learning.engine.products import Gradient, Outer, Pair, Plain, Products
from flare.learning.engine.stack import Starts
from flare.learning.engine.terms import Anchors, contrast_gradient, row_norms
from flare.learning.flat import FlatModel
from flare.learning.widths import chain


class UnknownLayerError(Exception):
    """A module has no layer of our own that does the same."""


@final
class LayerProgram:
    """A chain of the layers of `flare.learning.engine.layers`."""

    def __init__(self, model: FlatModel, sample_shape: Shape, products: Products | None = None) -> None:
        self.layers: list[Layer] = []
        self._model = model
        self._products = Plain() if products is None else products
        self.floats_per_sample = 0
        shape = sample_shape
        index = {name: i for i, name in enumerate(model.names)}
        for prefix, module in chain("", model.module):
            shape = self._append(module, shape, index, prefix)
        if len(shape) != 1:
            raise UnknownLayerError
        self._last_product = max((i for i, layer in enumerate(self.layers) if isinstance(layer, Product)), default=-1)
        self._first = min(i for i, layer in enumerate(self.layers) if layer.parameter is not None)
        if {layer.parameter for layer in self.layers} - {None} != set(range(len(model.names))):
            raise UnknownLayerError  # a layer that stands twice in the chain, or parameters that no layer uses

    def width(self, samples: int) -> int:
        """Up to a multiple of what products like or, for large batches, of a quarter of the power of two below."""
        unit = max(self._products.samples_unit, 1 << max(0, samples.bit_length() - 3))
        return -(-samples // unit) * unit

    def arrange(self, x: Tensor) -> Tensor:
        """Samples last."""
        return x.flatten(2).transpose(1, 2).contiguous().view(x.shape[0], *x.shape[2:], x.shape[1])

    def gradient(
        self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, anchors: Anchors | None = None
    ) -> tuple[Tensor, list[Gradient]]:
        """Forward and back."""
        losses, factors = self.backward(weights, *self.forward(weights, x), labels, shares, anchors)
        return losses, self.gradients(factors)

    def gradients(self, factors: Sequence[Tensor]) -> list[Gradient]:
        """Those of the parameters, from what `backward` answers beside the losses."""
        dense = {layer.parameter for layer in self.layers if isinstance(layer, Product)}
        left = iter(factors)
        return [
            Outer(self._products, next(left), next(left)) if parameter in dense else next(left)
            for parameter in range(len(self._model.names))
        ]

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        return self.forward(weights, x)[0]

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward to the last linear layer: shape (jobs, features, samples)."""
        parameters = self._parameters(weights)
        for layer in self.layers[: self._last_product]:
            x, _ = layer.forward(parameters[layer.parameter], x)
        return x

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """By PyTorch."""
        return row_norms(gradients)

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        """By PyTorch."""
        return starts.moved(stack, self._model.num_weights)

    def forward(self, weights: Tensor, x: Tensor) -> tuple[Tensor, list[Kept]]:
        """The logits, and what each layer keeps for the way back."""
        parameters, kept = self._parameters(weights), []
        for layer in self.layers:
            x, keep = layer.forward(parameters[layer.parameter], x)
            kept.append(keep)
        return x, kept

    def backward(
        self,
        weights: Tensor,
        logits: Tensor,
        kept: Sequence[Kept],
        labels: Tensor,
        shares: Tensor,
        anchors: Anchors | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """The losses, and the factors of all parameters' gradients, made from the last layer down to the first one that
        has weights; tensors alone, as a compiler likes it."""
        parameters = self._parameters(weights)
        losses, dy = cross_entropy(logits, labels, shares)
        gradients: list[Factors] = [()] * len(self._model.names)
        for i in range(len(self.layers) - 1, self._first - 1, -1):
            layer = self.layers[i]
            if layer.parameter is not None:
                gradients[layer.parameter] = layer.weight_gradient(kept[i], dy)
            if i > self._first:
                dy = layer.backward(parameters[layer.parameter], kept[i], dy)
                if anchors is not None and i == self._last_product:
                    dy = dy + contrast_gradient(kept[i][0], anchors, shares)  # a product keeps its input
        return losses, [factor for factors in gradients for factor in factors]

    def _parameters(self, weights: Tensor) -> dict[int | None, Tensor | None]:
        """The parameters by their place in the model, and None for layers that have none."""
        views = self._model.views(weights[:, : self._model.num_weights])
        return {None: None, **dict(enumerate(views.values()))}

    def _append(self, module: nn.Module, shape: Shape, index: dict[str, int], prefix: str) -> Shape:
        """Add the layers that do what `module` does; the shape of its output. Raises UnknownLayerError."""
        convert = _KNOWN.get(type(module))
        if convert is None or module._forward_hooks or module._forward_pre_hooks:
            raise UnknownLayerError
        layer, shape = convert(module, shape, index.get(f"{prefix}weight", -1), self._products)
        place = len(self.layers)
        if isinstance(layer, Pool) and not layer.average:
            # Adding a bias and ReLU leave the order of numbers as it is, so the largest number of a window stays the
            # largest. They may follow the maximum, where there are fewer numbers, and give the same bits.
            while place > 0 and isinstance(self.layers[place - 1], Bias | ReLU):
                place -= 1
        if layer is not None:
            self.layers.insert(place, layer)
        if getattr(module, "bias", None) is not None:
            self.layers.append(Bias(index.get(f"{prefix}bias", -1)))
        columns = 0
        if isinstance(layer, Convolution):
            columns = math.prod(layer.kernel) * cast("nn.Conv2d", module).in_channels * math.prod(shape[1:])
        self.floats_per_sample += 3 * math.prod(shape) + 3 * columns
        return shape


_Converted = tuple[Layer | None, Shape]


def _convolution(module: nn.Conv2d, shape: Shape, parameter: int, products: Products) -> _Converted:
    plain = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
    if not plain or isinstance(module.padding, str) or len(shape) != 3:
        raise UnknownLayerError
    padding = cast("Pair", module.padding)
    side = (shape[1] + 2 * padding[0], shape[2] + 2 * padding[1])
    kernel, stride = cast("Pair", module.kernel_size), cast("Pair", module.stride)
    layer = Convolution(products, parameter, kernel, stride, padding, side)
    return layer, (module.out_channels, *layer.out_side)


def _product(module: nn.Linear, shape: Shape, parameter: int, products: Products) -> _Converted:
    if len(shape) != 1:
        raise UnknownLayerError
    return Product(products, parameter), (module.out_features,)


def _flatten(module: nn.Flatten, shape: Shape, *_: Any) -> _Converted:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise UnknownLayerError
    return Flatten(shape), (math.prod(shape),)


def _pool(module: nn.MaxPool2d | nn.AvgPool2d, shape: Shape, *_: Any) -> _Converted:
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    special = module.ceil_mode or getattr(module, "return_indices", False) or getattr(module, "divisor_override", None)
    if special or stride != kernel or padding != (0, 0) or _pair(getattr(module, "dilation", 1)) != (1, 1):
        raise UnknownLayerError
    if len(shape) != 3:
        raise UnknownLayerError
    layer = Pool(kernel, shape[1:], average=isinstance(module, nn.AvgPool2d))
    return layer, (shape[0], *layer.out_side)


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


_KNOWN: dict[type[nn.Module], Callable[[Any, Shape, int, Products], _Converted]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _product,
    nn.Flatten: _flatten,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.ReLU: lambda _, shape, *__: (ReLU(), shape),
    nn.Tanh: lambda _, shape, *__: (Tanh(), shape),
    nn.Identity: lambda _, shape, *__: (None, shape),
}


def cross_entropy(logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Each job's loss, the sum of its samples' by their shares, and the gradient of the logits.

    Shapes: logits (jobs, classes, samples), labels and shares (jobs, samples); losses (jobs,).
    """
    log_probability = functional.log_softmax(logits, dim=1)
    classes = torch.arange(logits.shape[1], device=logits.device)[:, None]
    hit = labels[:, None, :] == classes  # (jobs, classes, samples)
    losses = -(torch.where(hit, log_probability, 0.0).sum(1) * shares).sum(1)
    return losses, (log_probability.exp() - hit.float()) * shares[:, None, :]
