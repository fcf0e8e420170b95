"""Loss and gradient of a model for a stack of jobs at once: by own layers where they are known, else by vmap.

A program takes weights in rows (jobs, at least the model's weights), and samples in an arrangement of its own
(`arrange`). What one job gets depends on its own row of everything alone, also where others are nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from flare.learning.engine.chain import LayerProgram, UnknownLayerError
from flare.learning.engine.operations import Gradient, Onto
from flare.learning.engine.stack import PlainRows, Starts
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.terms import Anchors, contrast_loss
from flare.learning.features import with_features
from flare.learning.flat import FlatModel


class Calls(Protocol):
    """What is asked of a model for some jobs, however it is computed."""

    def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples as the program wants them, and their labels, by their indices (jobs, samples)."""
        ...

    def gradient(
        self,
        weights: Tensor,
        x: Tensor,
        labels: Tensor,
        shares: Tensor,
        anchors: Anchors | None = None,
        onto: Onto | None = None,
    ) -> tuple[Tensor, list[Gradient]]:
        """Losses (jobs,), the sums of the samples' by their shares (jobs, samples), and the parameters' gradients.

        With anchors, the gradients are those of the losses and the contrast; the losses are the same. Some gradients
        may go onto weights, if there are some to go to: those may be the ones that were given.
        """
        ...

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """What the last linear layer is given; jobs are the first axis, the others in an order of the program's own."""
        ...

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """The length of each job's gradient over all parameters, shape (jobs,)."""
        ...

    def sums(self, numbers: Tensor) -> Tensor:
        """The sum of each job's numbers, (jobs, numbers) of float64; shape (jobs,)."""
        ...

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        """The way of each row of a stack from its start, (jobs, weights), and its length, summed in float64, (jobs,).

        May write into the stack: where memory runs out, the stack is made anew.
        """
        ...

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Shape (jobs, classes, samples)."""
        ...


class Program(Calls, Protocol):
    """A model as a function of the weights of many jobs."""

    floats_per_sample: int
    """About how many numbers a pass forward and back holds at once for a sample."""

    def width(self, samples: int) -> int:
        """How many places a batch of so many samples takes; those too many get the share 0."""
        ...

    def arrange(self, x: Tensor) -> Tensor:
        """Samples (jobs, samples, ...) as the program wants them; jobs stay the first axis."""
        ...


def make_program(model: FlatModel, sample: Tensor) -> Program:
    """The program of PyTorch's operations for a model whose samples look like `sample`."""
    try:
        return LayerProgram(model, tuple(sample.shape))
    except UnknownLayerError:
        return VmapProgram(model, sample)


@final
class VmapProgram(PlainRows):
    """Any module, through `torch.func.vmap`."""

    def __init__(self, model: FlatModel, sample: Tensor) -> None:
        self._model = model
        self._gradient = vmap(grad_and_value(self._loss))
        self._contrast_gradient = vmap(grad_and_value(self._loss_and_contrast, has_aux=True))
        self.floats_per_sample = 3 * _saved_floats(model.module, sample)

    def width(self, samples: int) -> int:
        """As it is: a module may do with a batch as a whole what it likes."""
        return samples

    def arrange(self, x: Tensor) -> Tensor:
        """As it is."""
        return x

    def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
        """As they are."""
        x, labels = data.batch(indices.reshape(-1))
        return x.view(*indices.shape, *x.shape[1:]), labels.view(indices.shape)

    def gradient(
        self,
        weights: Tensor,
        x: Tensor,
        labels: Tensor,
        shares: Tensor,
        anchors: Anchors | None = None,
        onto: Onto | None = None,
    ) -> tuple[Tensor, list[Gradient]]:
        """The loss and its gradient of every job, all of them numbers."""
        parameters = self._parameters(weights)
        if anchors is None:
            gradients, losses = self._gradient(parameters, x, labels, shares)
        else:
            gradients, (_, losses) = self._contrast_gradient(parameters, x, labels, shares, anchors)
        return losses, list(gradients.values())

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Shape (jobs, samples, features)."""
        features: Tensor = vmap(lambda *job: self._call_with_features(*job)[1])(self._parameters(weights), x)
        return features

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
        return _loss(self._call(parameters, x), labels, shares)

    def _call_with_features(self, parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return with_features(self._model.module, lambda x: self._call(parameters, x), x)

    def _loss_and_contrast(
        self, parameters: dict[str, Tensor], x: Tensor, labels: Tensor, shares: Tensor, anchors: Anchors
    ) -> tuple[Tensor, Tensor]:
        """Their sum, and the loss alone."""
        logits, z = self._call_with_features(parameters, x)
        loss = _loss(logits, labels, shares)
        each = contrast_loss(z, anchors.z_start, anchors.z_previous, anchors.temperature)
        return loss + anchors.mu * (each * shares).sum(), loss


def _loss(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    return (functional.cross_entropy(logits, labels, reduction="none") * shares).sum()


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
