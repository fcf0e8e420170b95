"""Loss and gradient of a model for a stack of jobs at once: by own layers where they are known, else by vmap.

A program takes the parameters as a list of tensors (jobs, ...) in the order of the model, and samples in an arrangement
of its own (`arrange`). What one job gets depends on its own row of everything alone, also where others are nan.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from flare.learning.engine.chain import LayerProgram, UnknownLayerError
from flare.learning.engine.products import Plain, Products
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

    def gradient(
        self, parameters: Sequence[Tensor], x: Tensor, labels: Tensor, shares: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses (jobs,), the sums of the samples' by their shares (jobs, samples), and the parameters' gradients."""
        ...

    def logits(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Shape (jobs, classes, samples)."""
        ...


def make_program(model: FlatModel, sample: Tensor) -> Program:
    """The fastest program for a model whose samples look like `sample`."""
    try:
        return LayerProgram(model, tuple(sample.shape))
    except UnknownLayerError:
        return VmapProgram(model, sample)


GradientFunction = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor], tuple[Tensor, list[Tensor]]]


def can_compile(device: torch.device) -> bool:
    """Whether there is a GPU and the compiler that PyTorch's packages for GPUs bring along."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def compiled_gradient(
    model: FlatModel, sample: Tensor, *, tf32: bool = False, own_products: bool = True
) -> GradientFunction | None:
    """`Program.gradient` compiled for stacks of any height, with our own products on a GPU; None without own layers."""
    products: Products = Plain()
    if own_products and can_compile(sample.device):
        from flare.learning.engine.kernels import TensorCores  # needs Triton

        products = TensorCores(tf32=tf32)
    try:
        program = LayerProgram(model, tuple(sample.shape), products)
    except UnknownLayerError:
        return None
    # In two halves: between them stands what the layers keep, which a compiler would rather compute twice.
    forward, backward = torch.compile(program.forward), torch.compile(program.backward)

    def gradient(
        parameters: Sequence[Tensor], x: Tensor, labels: Tensor, shares: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        _any_height(*parameters, x, labels, shares)
        logits, kept = forward(parameters, x)
        _any_height(logits, *(tensor for keep in kept for tensor in keep))
        losses, gradients = backward(parameters, logits, kept, labels, shares)
        return losses, gradients

    return gradient


def _any_height(*stacks: Tensor) -> None:
    for stack in stacks:
        torch._dynamo.mark_dynamic(stack, 0)


@final
class VmapProgram:
    """Any module, through `torch.func.vmap`."""

    def __init__(self, model: FlatModel, sample: Tensor) -> None:
        self._module = model.module
        self._names = model.names
        self._gradient = vmap(grad_and_value(self._loss))
        self.floats_per_sample = 3 * _saved_floats(model.module, sample)

    def width(self, samples: int) -> int:
        """As it is: a module may do with a batch as a whole what it likes."""
        return samples

    def arrange(self, x: Tensor) -> Tensor:
        """As it is."""
        return x

    def gradient(
        self, parameters: Sequence[Tensor], x: Tensor, labels: Tensor, shares: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient of every job."""
        gradients, losses = self._gradient(tuple(parameters), x, labels, shares)
        return losses, list(gradients)

    def logits(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Forward alone."""
        answers: Tensor = vmap(self._call)(tuple(parameters), x)
        return answers.transpose(1, 2)

    def _call(self, parameters: tuple[Tensor, ...], x: Tensor) -> Tensor:
        answer: Tensor = functional_call(self._module, dict(zip(self._names, parameters, strict=True)), (x,))
        return answer

    def _loss(self, parameters: tuple[Tensor, ...], x: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
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
