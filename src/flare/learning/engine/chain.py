"""A chain of known layers as one pass forward and back for a stack of jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast, final

from torch import Tensor, nn

from flare.learning.engine.layers import Convolution, Finish, Flatten, Kept, Layer, Product, Shape, Tanh
from flare.learning.engine.operations import Gradient, Onto, Operations, Pair, Plain, Pool, Windows
from flare.learning.engine.stack import PlainRows
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.terms import Anchors
from flare.learning.flat import FlatModel
from flare.learning.widths import chain


class UnknownLayerError(Exception):
    """A module has no layer of our own that does the same."""


@final
class LayerProgram(PlainRows):
    """A chain of the layers of `flare.learning.engine.layers`."""

    def __init__(self, model: FlatModel, sample_shape: Shape, operations: Operations | None = None) -> None:
        self.layers: list[Layer] = []
        self._model = model
        self._operations: Operations = Plain() if operations is None else operations
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
        unit = max(self._operations.samples_unit, 1 << max(0, samples.bit_length() - 3))
        return -(-samples // unit) * unit

    def arrange(self, x: Tensor) -> Tensor:
        """Samples last."""
        return x.flatten(2).transpose(1, 2).contiguous().view(x.shape[0], *x.shape[2:], x.shape[1])

    def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gathered, then arranged."""
        x, labels = data.batch(indices.reshape(-1))
        return self.arrange(x.view(*indices.shape, *x.shape[1:])), labels.view(indices.shape)

    def gradient(
        self,
        weights: Tensor,
        x: Tensor,
        labels: Tensor,
        shares: Tensor,
        anchors: Anchors | None = None,
        onto: Onto | None = None,
    ) -> tuple[Tensor, list[Gradient]]:
        """Forward and back; what goes onto weights are the gradients of dense layers."""
        logits, kept = self._forward(weights, x)
        losses, dy = self._operations.cross_entropy(logits, labels, shares)
        return losses, self._backward(weights, kept, dy, shares, anchors, onto)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        return self._through(self.layers, weights, x)

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward to the last linear layer: shape (jobs, features, samples)."""
        return self._through(self.layers[: self._last_product], weights, x)

    def _through(self, layers: Sequence[Layer], weights: Tensor, x: Tensor) -> Tensor:
        """What comes out of some layers; nothing is kept."""
        answer = x
        for each, _ in self._passes(layers, weights, x):
            answer = each
        return answer

    def _forward(self, weights: Tensor, x: Tensor) -> tuple[Tensor, list[Kept]]:
        """The logits, and what each layer keeps for the way back."""
        answer, kept = x, list[Kept]()
        for each, of_layers in self._passes(self.layers, weights, x):
            answer = each
            kept += of_layers
        return answer, kept

    def _passes(self, layers: Sequence[Layer], weights: Tensor, x: Tensor) -> Iterator[tuple[Tensor, tuple[Kept, ...]]]:
        """What comes out of one layer after the other, or of two that are one pass, and what they keep."""
        parameters = self._parameters(weights)
        left = list(layers)
        while left:
            layer = left.pop(0)
            weight, after = parameters[layer.parameter], left[0] if left else None
            if isinstance(layer, Convolution) and isinstance(after, Finish):
                del left[0]
                x, keep, finish_keeps = layer.finished(weight, x, after, parameters[after.parameter])
                yield x, (keep, finish_keeps)
                del finish_keeps
            else:
                x, keep = layer.forward(weight, x)
                yield x, (keep,)
            del keep  # who wants it, has it

    def _backward(
        self,
        weights: Tensor,
        kept: Sequence[Kept],
        dy: Tensor,
        shares: Tensor,
        anchors: Anchors | None,
        onto: Onto | None,
    ) -> list[Gradient]:
        """The gradients of all parameters, made from the last layer down to the first one that has weights. A layer's
        own are not needed below it, so that they may be those onto which its gradient goes."""
        parameters = self._parameters(weights)
        targets = {} if onto is None else self._parameters(onto.weights)
        gradients: dict[int, Gradient] = {}
        for i in range(len(self.layers) - 1, self._first - 1, -1):
            layer = self.layers[i]
            target = targets.get(layer.parameter)
            there = None if onto is None or target is None else Onto(target, onto.scale)
            weight, to_input = parameters[layer.parameter], i > self._first
            dx, gradient = layer.backward(weight, kept[i], dy, there, to_input=to_input)
            if layer.parameter is not None:
                gradients[layer.parameter] = gradient
            if i > self._first:
                assert dx is not None
                dy = dx
                if anchors is not None and i == self._last_product:
                    dy = self._operations.with_contrast(dy, kept[i][0], anchors, shares)  # a product keeps its input
        return [gradients[parameter] for parameter in range(len(self._model.names))]

    def _parameters(self, weights: Tensor) -> dict[int | None, Tensor | None]:
        """The parameters by their place in the model, and None for layers that have none: a bias as (jobs, numbers),
        others as matrices, (jobs, first axis, other axes).

        Rows lie as far apart where there is one as where there are many: kernels are compiled for that.
        """
        parameters: dict[int | None, Tensor | None] = {None: None}
        begin = weights.storage_offset()
        for place, (shape, size) in enumerate(zip(self._model.shapes, self._model.sizes, strict=True)):
            columns = (size // shape[0],) if len(shape) > 1 else ()
            strides = (weights.stride(0), *columns, 1)
            parameters[place] = weights.as_strided((len(weights), shape[0], *columns), strides, begin)
            begin += size
        return parameters

    def _append(self, module: nn.Module, shape: Shape, index: dict[str, int], prefix: str) -> Shape:
        """Add the layers that do what `module` does; the shape of its output. Raises UnknownLayerError."""
        convert = _KNOWN.get(type(module))
        if convert is None or module._forward_hooks or module._forward_pre_hooks:
            raise UnknownLayerError
        layer, shape = convert(module, shape, index.get(f"{prefix}weight", -1), self._operations)
        if isinstance(layer, Finish):
            self._finish(layer)
        elif layer is not None:
            self.layers.append(layer)
        if getattr(module, "bias", None) is not None:
            self._finish(Finish(self._operations, parameter=index.get(f"{prefix}bias", -1)))
        columns = 0
        if isinstance(layer, Convolution) and self._operations.writes_windows(layer.windows):
            columns = math.prod(layer.windows.kernel) * cast("nn.Conv2d", module).in_channels * math.prod(shape[1:])
        self.floats_per_sample += 3 * math.prod(shape) + 3 * columns
        return shape

    def _finish(self, finish: Finish) -> None:
        """Add a pool, a bias or a ReLU: to what is there where that can be done in one."""
        last = self.layers[-1] if self.layers else None
        if not isinstance(last, Finish):
            self.layers.append(finish)
        elif finish.relu and not last.relu:
            self.layers[-1] = replace(last, relu=True)
        elif finish.pool is not None and not finish.pool.average:
            # Adding a bias and ReLU leave the order of numbers as it is, so the largest number of a window stays the
            # largest. They may follow the maximum, where there are fewer numbers, and give the same bits.
            if last.pool is not None:
                self.layers[-1] = Finish(self._operations, last.pool)
            else:
                del self.layers[-1]
            self.layers.append(replace(last, pool=finish.pool))
        else:
            self.layers.append(finish)


_Converted = tuple[Layer | None, Shape]


def _convolution(module: nn.Conv2d, shape: Shape, parameter: int, operations: Operations) -> _Converted:
    plain = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
    if not plain or isinstance(module.padding, str) or len(shape) != 3:
        raise UnknownLayerError
    padding = cast("Pair", module.padding)
    side = (shape[1] + 2 * padding[0], shape[2] + 2 * padding[1])
    kernel, stride = cast("Pair", module.kernel_size), cast("Pair", module.stride)
    windows = Windows(kernel, stride, padding, side)
    return Convolution(operations, parameter, windows), (module.out_channels, *windows.out_side)


def _product(module: nn.Linear, shape: Shape, parameter: int, operations: Operations) -> _Converted:
    if len(shape) != 1:
        raise UnknownLayerError
    return Product(operations, parameter), (module.out_features,)


def _flatten(module: nn.Flatten, shape: Shape, *_: Any) -> _Converted:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise UnknownLayerError
    return Flatten(shape), (math.prod(shape),)


def _pool(module: nn.MaxPool2d | nn.AvgPool2d, shape: Shape, _: int, operations: Operations) -> _Converted:
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    special = module.ceil_mode or getattr(module, "return_indices", False) or getattr(module, "divisor_override", None)
    if special or stride != kernel or padding != (0, 0) or _pair(getattr(module, "dilation", 1)) != (1, 1):
        raise UnknownLayerError
    if len(shape) != 3:
        raise UnknownLayerError
    if kernel == (1, 1):
        return None, shape
    if math.prod(kernel) > _MAX_PLACES:
        raise UnknownLayerError
    pool = Pool(kernel, shape[1:], average=isinstance(module, nn.AvgPool2d))
    return Finish(operations, pool), (shape[0], *pool.out_side)


_MAX_PLACES = 256  # of a window: which one was its maximum is kept in a byte


def _pair(value: Any) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


_KNOWN: dict[type[nn.Module], Callable[[Any, Shape, int, Operations], _Converted]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _product,
    nn.Flatten: _flatten,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.ReLU: lambda _, shape, __, operations: (Finish(operations, relu=True), shape),
    nn.Tanh: lambda _, shape, *__: (Tanh(), shape),
    nn.Identity: lambda _, shape, *__: (None, shape),
}
