"""Loss and gradient of a model for a stack of jobs at once: by own layers where they are known, else by vmap.

A program takes weights in rows (jobs, at least the model's weights), and samples in an arrangement of its own
(`arrange`). What one job gets depends on its own row of everything alone, also where others are nan.
"""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from flare.learning.engine.chain import LayerProgram, UnknownLayerError
from flare.learning.flat import FlatModel


class Program(Protocol):
    """A model as a function of the weights of many jobs."""

    floats_per_sample: int
    """About how many numbers a pass forward and back holds at once for a sample."""

    def width(self, samples: int) -> int:
        """How many places a batch of so many samples takes; those too many get the share 0."""
        ...

    def arrange(self, x: Tensor) -> Tensor:
        """Samples (jobs, samples, ...) as the program wants them; jobs stay the first axis."""
        ...

    def gradient(self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Losses (jobs,), the sums of the samples' by their shares (jobs, samples), and the parameters' gradients."""
        ...

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Shape (jobs, classes, samples)."""
        ...


def make_program(model: FlatModel, sample: Tensor) -> Program:
    """The fastest program for a model whose samples look like `sample`."""
    try:
        return LayerProgram(model, tuple(sample.shape))
    except UnknownLayerError:
        return VmapProgram(model, sample)


@final
class VmapProgram:
    """Any module, through `torch.func.vmap`."""

    def __init__(self, model: FlatModel, sample: Tensor) -> None:
        self._model = model
        self._gradient = vmap(grad_and_value(self._loss))
        self.floats_per_sample = 3 * _saved_floats(model.module, sample)

    def width(self, samples: int) -> int:
        """As it is: a module may do with a batch as a whole what it likes."""
        return samples

    def arrange(self, x: Tensor) -> Tensor:
        """As it is."""
        return x

    def gradient(self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient of every job."""
        gradients, losses = self._gradient(self._parameters(weights), x, labels, shares)
        return losses, list(gradients.values())

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        answers: Tensor = vmap(self._call)(self._parameters(weights), x)
        return answers.transpose(1, 2)

    def _parameters(self, weights: Tensor) -> dict[str, Tensor]:
        return self._model.views(weights[:, : self._model.num_weights])

    def _call(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        answer: Tensor = functional_call(self._model.module, parameters, (x,))
        return answer

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        each = functional.cross_entropy(self._call(parameters, x), labels, reduction="none")
        return (each * shares).sum()


def _saved_floats(module: nn.Module, sample: Tensor) -> int:
    """How many numbers autograd keeps on the way forward with one sample, weights included."""
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        module(sample.unsqueeze(0))
    return saved
