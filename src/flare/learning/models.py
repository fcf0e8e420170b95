"""The models of the paper and two small ones, and any other that a function builds.

A model is built by a function of the shape of a sample and the number of classes; it maps a batch of samples to one
number (a logit) for each class. What else the function takes are options, each with a default value:

    @model("wide")
    def wide(sample_shape, num_classes, *, hidden=500): ...

`[learning.model_options]` of a configuration sets them. The two networks for images have the size of an update that the
paper's S asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from flare.config.declared import Interface, Kind
from flare.config.option import Limits
from flare.config.options import NO_OPTIONS
from flare.registry import Registry, first_line
from flare.rng import torch_stream

ModelBuilder = Callable[..., nn.Module]
_SHAPES = ("sample_shape", "num_classes")
INTERFACE = Interface("model", _SHAPES, reserved=(*_SHAPES, "seed"))


@dataclass(frozen=True, eq=False)
class ModelKind(Kind):
    """A registered model: the function that builds it, and the options that the function takes."""

    interface: ClassVar = INTERFACE
    build: ModelBuilder


MODELS: Registry[ModelKind] = Registry("model", "models")
"""Every registered model by name, in the order of registration."""


def model(name: str) -> Callable[[ModelBuilder], ModelBuilder]:
    """Register the decorated function of (sample_shape, num_classes, *, options) as the model `name`."""

    MODELS.refuse_bare(name, "flare.model")

    def register(build: ModelBuilder) -> ModelBuilder:
        options = INTERFACE.options_of(name, build)
        MODELS.add(ModelKind(name, first_line(build), options, build), build)
        return build

    return register


@model("logistic")
def logistic(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sample_shape), num_classes))


@model("mlp")
def mlp(
    sample_shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: Annotated[int, "units of the hidden layer", Limits(at_least=1, at_most=1_000_000)] = 200,
) -> nn.Module:
    """One hidden layer on the flattened sample."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(sample_shape), hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    )


@model("mnist-cnn")
def mnist_cnn(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions and a hidden layer; 312,414 weights for 1 x 28 x 28 and 10 classes, S = 1e7 bit."""
    return _two_convolutions("mnist-cnn", sample_shape, num_classes, channels=(16, 32), hidden=572)


@model("cifar-cnn")
def cifar_cnn(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions and a hidden layer; 1,999,794 weights for 3 x 32 x 32 and 10 classes, S = 6.4e7 bit."""
    return _two_convolutions("cifar-cnn", sample_shape, num_classes, channels=(32, 64), hidden=1208)


def make_model(
    model: str | ModelBuilder,
    sample_shape: tuple[int, ...],
    num_classes: int,
    *,
    seed: int,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> nn.Module:
    """Build a model by name, or by a function of (sample_shape, num_classes); the seed fixes its initial weights.

    Raises ValueError where there is no such model or option, or where it does not turn samples into one number a class.
    """
    build = _builder(model, options)
    with torch_stream(seed, "model"):
        built = build(sample_shape, num_classes)
        check_output(built, sample_shape, num_classes)  # in here: a lazy layer draws its weights at the first batch
    return built


def _builder(model: str | ModelBuilder, options: Mapping[str, Any]) -> ModelBuilder:
    if isinstance(model, nn.Module):
        raise ValueError(
            f"a model is given as a {type(model).__name__} that is already built; give a function that builds it, "
            "such as lambda sample_shape, num_classes: MyNet(), so that the seed of a run fixes its initial weights"
        )
    if callable(model):
        return partial(model, **options)
    kind = MODELS.find(model)
    return partial(kind.build, **kind.check_options(options))


def check_output(built: nn.Module, sample_shape: tuple[int, ...], num_classes: int) -> None:
    """ValueError where a model does not turn samples of that shape into one number a class, or does so otherwise when
    it is asked again."""
    if not isinstance(built, nn.Module):
        raise ValueError(f"the function that builds the model returned {type(built).__name__}, not a torch.nn.Module")
    was_training = built.training
    try:
        with torch.no_grad():
            answer = built.eval()(torch.zeros(2, *sample_shape))  # at which lazy layers draw their weights
            before = torch.get_rng_state()
            again = built(torch.zeros(2, *sample_shape))
            draws = not torch.equal(before, torch.get_rng_state())
            torch.set_rng_state(before)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"the model cannot take two samples of shape {sample_shape}: {error}") from None
    finally:
        built.train(was_training)
    shape = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
    if shape != (2, num_classes):
        raise ValueError(
            f"the model answers {shape} for two samples of shape {sample_shape}; it must answer (2, {num_classes}), "
            "one number for each sample and class"
        )
    if draws or not torch.equal(answer.nan_to_num(), again.nan_to_num()):
        raise ValueError(
            "the model draws random numbers or answers the same samples otherwise when it is asked again, so that a "
            "device's update would depend on who trained before it; take dropout, random numbers and counters "
            "out of its forward"
        )


def _two_convolutions(
    name: str, sample_shape: tuple[int, ...], num_classes: int, *, channels: tuple[int, int], hidden: int
) -> nn.Module:
    """Twice a convolution (5 x 5, no padding), a 2 x 2 maximum and ReLU, then a hidden layer.

    ReLU rises, so it may follow the maximum: the same function and gradients, to the last bit, on a quarter of the
    numbers.
    """
    if len(sample_shape) != 3 or min(sample_shape[1:]) < 16:  # 16 -> 12 -> 6 -> 2 -> 1
        raise ValueError(
            f"model {name} needs images of shape (channels, height, width) of at least 16 x 16 pixels, the samples "
            f"have shape {sample_shape}; take mlp or logistic, which fit any shape"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in sample_shape[1:])
    return nn.Sequential(
        nn.Conv2d(sample_shape[0], channels[0], kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(channels[0], channels[1], kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels[1] * height * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )
