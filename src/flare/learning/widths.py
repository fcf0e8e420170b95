"""The widths of a model: how many channels or features its layers have, and the narrower models that lie within it.

A narrower model is made of the leading channels of every hidden layer; samples and classes stay as they are. In a chain
of layers the weights of each are a matrix, and the narrower layer is its upper left corner:

    linear         (outputs, inputs)
    convolution    (outputs, inputs x kernel height x kernel width)
    linear after nn.Flatten    (outputs, channels x places of a channel), channel after channel

So a few whole numbers for each layer say where the weights of every narrower model are, how many there are and what
they cost to compute with. They are read here from a module (`read_widths`), or refused with the reason: layers between
those with weights must work on each channel by itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, final

import torch
from torch import Tensor, nn

from flare.learning.flat import FlatModel

_BY_ELEMENT: tuple[type[nn.Module], ...] = (
    *(nn.Identity, nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Dropout),
)
_BY_CHANNEL: tuple[type[nn.Module], ...] = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_KNOWN = "nn.Sequential of nn.Linear, nn.Conv2d, nn.Flatten, ReLU and its like, and 2-d pooling"
MAX_WEIGHTS = 2**31 - 1
"""Of a model whose widths are read from a file."""
_NEARLY = 1.0 - 1e-12  # so that 0.1 x 30 is 3


@final
@dataclass(frozen=True)
class Weighted:
    """A layer with weights, as a matrix of shape (outputs, inputs x spread)."""

    inputs: int  # channels or features of the layer before, or of a sample
    spread: int  # columns for each of them
    outputs: int
    places: int  # how often the matrix is applied to a sample: the height x width of a convolution's output
    bias: bool


@final
@dataclass(frozen=True)
class Widths:
    """The layers of a model that have weights, in their order; there is at least one."""

    layers: tuple[Weighted, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        """The outputs of each layer of the model itself."""
        return tuple(layer.outputs for layer in self.layers)

    def at(self, rate: float) -> tuple[int, ...]:
        """The outputs of each layer of the model whose hidden layers have the share `rate`, rounded up, of theirs."""
        hidden = self.whole[:-1]
        return (*(max(1, math.ceil(rate * width * _NEARLY)) for width in hidden), self.whole[-1])

    def num_weights(self, widths: Sequence[int]) -> int:
        """How many weights the model with these outputs has."""
        corners = zip(self.layers, self._corners(widths), strict=True)
        return sum(rows * (columns + layer.bias) for layer, (rows, columns) in corners)

    def work(self, widths: Sequence[int]) -> float:
        """What a step of the model with these outputs costs, as a share of one of the whole model: by the multiply-adds
        of a pass forward; a pass back takes the same multiple of them in both."""
        return self._multiply_adds(widths) / self._multiply_adds(self.whole)

    def numbers(self, widths: Sequence[int], scale: float = 1.0) -> Tensor:
        """A vector over the weights of the whole model: 0 outside the model with these outputs, `scale` within its
        hidden layers, 1 within the last one; shape (weights,)."""
        parts = []
        last = len(self.layers) - 1
        for i, (layer, (rows, columns)) in enumerate(zip(self.layers, self._corners(widths), strict=True)):
            matrix = torch.zeros(layer.outputs, layer.inputs * layer.spread)
            matrix[:rows, :columns] = 1.0 if i == last else scale
            parts.append(matrix.reshape(-1))
            if layer.bias:
                parts.append(matrix[:, 0])  # a matrix has at least one column, which every width holds
        return torch.cat(parts)

    def laid(self, widths: Sequence[int], rows: Tensor) -> Tensor:
        """Vectors of the model with these outputs, shape (rows, its weights), where they are in the whole one and zeros
        elsewhere: shape (rows, weights)."""
        whole = rows.new_zeros(len(rows), self.num_weights(self.whole))
        at = into = 0
        for layer, (height, width) in zip(self.layers, self._corners(widths), strict=True):
            full = layer.outputs, layer.inputs * layer.spread
            part = rows[:, at : at + height * width].view(-1, height, width)
            whole[:, into : into + math.prod(full)].view(-1, *full)[:, :height, :width] = part
            at, into = at + height * width, into + math.prod(full)
            if layer.bias:
                whole[:, into : into + height] = rows[:, at : at + height]
                at, into = at + height, into + layer.outputs
        return whole

    def to_json(self) -> list[dict[str, Any]]:
        """As a list of JSON objects."""
        return [asdict(layer) for layer in self.layers]

    @classmethod
    def from_json(cls, told: Any) -> Widths:
        """What `to_json` made; ValueError where it cannot have."""
        names = {each.name for each in fields(Weighted)}
        sound = isinstance(told, list) and told
        if not sound or not all(isinstance(each, Mapping) and set(each) == names for each in told):
            raise ValueError("the widths of a model are no list of its layers")
        counts = [each[name] for each in told for name in names - {"bias"}]
        if not all(type(count) is int and 0 < count < 2**31 for count in counts):
            raise ValueError("the widths of a model are whole numbers above 0")
        found = cls(tuple(Weighted(**{**each, "bias": bool(each["bias"])}) for each in told))
        if found.num_weights(found.whole) > MAX_WEIGHTS:
            raise ValueError(f"the widths are those of a model of more than {MAX_WEIGHTS} weights")
        return found

    def _corners(self, widths: Sequence[int]) -> list[tuple[int, int]]:
        """The rows and columns of each layer that the model with these outputs holds."""
        before = [self.layers[0].inputs, *widths[:-1]]
        return [(rows, held * layer.spread) for layer, held, rows in zip(self.layers, before, widths, strict=True)]

    def _multiply_adds(self, widths: Sequence[int]) -> int:
        corners = zip(self.layers, self._corners(widths), strict=True)
        return sum(layer.places * rows * columns for layer, (rows, columns) in corners)


def chain(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested `nn.Sequential` in order, with the prefix of their parameters' names."""
    if type(module) is nn.Sequential:
        for name, child in module._modules.items():  # named_children() leaves out what stands there twice
            assert child is not None
            yield from chain(f"{prefix}{name}.", child)
    else:
        yield prefix, module


def read_widths(module: nn.Module, sample_shape: tuple[int, ...]) -> Widths:
    """The widths of a module; ValueError says which of its layers cannot be followed, and why."""
    layers, names = [], []
    channels = sample_shape[0] if sample_shape else 1
    x = torch.zeros(1, *sample_shape, device=next(iter(module.parameters())).device)
    for prefix, layer in chain("", module):
        where = f"layer '{prefix[:-1]}' ({type(layer).__name__})" if prefix else f"the model ({type(layer).__name__})"
        _refuse(where, layer, x)
        with torch.no_grad():
            y = layer(x)
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layers.append(_weighted(layer, channels, y))
            channels = layers[-1].outputs
            names += [f"{prefix}{name}" for name, _ in layer.named_parameters()]
        x = y
    if names != FlatModel(module).names:
        raise ValueError(
            "the widths of the model cannot be followed: a layer stands in it twice, or some of its parameters are not "
            "trained; give every layer weights of its own that ask for gradients"
        )
    return Widths(tuple(layers))


def narrowed(module: nn.Module, widths: Widths, outputs: Sequence[int]) -> nn.Sequential:
    """The model with these outputs of its layers: the leading channels of the module, with copies of their weights."""
    corners = iter(widths._corners(outputs))
    made = []
    for _, layer in chain("", module):
        small = copy.deepcopy(layer)
        if isinstance(small, nn.Conv2d | nn.Linear):
            rows, columns = next(corners)
            _cut(small, rows, columns // small.weight[0, 0].numel())
        made.append(small)
    return nn.Sequential(*made)


def _cut(layer: nn.Conv2d | nn.Linear, outputs: int, inputs: int) -> None:
    """Leave a layer its leading outputs and inputs."""
    layer.weight = nn.Parameter(layer.weight.detach()[:outputs, :inputs].clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[:outputs].clone())
    if isinstance(layer, nn.Conv2d):
        layer.out_channels, layer.in_channels = outputs, inputs
    else:
        layer.out_features, layer.in_features = outputs, inputs


def _weighted(layer: nn.Conv2d | nn.Linear, channels: int, y: Tensor) -> Weighted:
    """The layer as a matrix, where the layer before has so many channels and the answer to a sample is y."""
    outputs, columns = len(layer.weight), layer.weight[0].numel()
    return Weighted(channels, columns // channels, outputs, y[0, 0].numel(), layer.bias is not None)


def _refuse(where: str, layer: nn.Module, x: Tensor) -> None:
    """ValueError where a layer, given x, does not work on each channel by itself or as a matrix on all of them."""
    kind, why = type(layer), ""
    if kind is nn.Linear:
        why = "" if x.dim() == 2 else "is not given one axis of features: put nn.Flatten() before it"
    elif isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        why = "has groups, which tie channels together" if layer.groups != 1 else _not_an_image(x)
    elif isinstance(layer, nn.Flatten):
        why = "" if (layer.start_dim, layer.end_dim) == (1, -1) else "flattens only some of the axes of a sample"
    elif kind in _BY_CHANNEL:
        why = _not_an_image(x)
    elif kind not in _BY_ELEMENT:
        why = "is none whose channels are known to stay apart"
    if not why and (layer._forward_hooks or layer._forward_pre_hooks):
        why = "has hooks, which may do anything"
    if why:
        raise ValueError(
            f"the widths of the model cannot be followed: {where} {why}. What can be made narrower is an {_KNOWN}"
        )


def _not_an_image(x: Tensor) -> str:
    return "" if x.dim() == 4 else f"is given samples of {x.dim() - 1} axes, and not of channels, height and width"
