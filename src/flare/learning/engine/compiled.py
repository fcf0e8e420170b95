"""A chain of layers compiled for GPUs: fused kernels, with our own matrix products between them.

The compiler makes its kernels for stacks of any height, always after the same example, and without measuring which of
two is faster: so that a job's numbers do not depend on the company, nor on what was computed before, to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor

from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.products import Plain, Products
from flare.learning.flat import FlatModel

_EXAMPLE_HEIGHT = 32  # jobs
_WANTED = {"deterministic": True, "split_reductions": False}


def can_compile(device: torch.device) -> bool:
    """Whether there is a GPU and the compiler that PyTorch's packages for GPUs bring along (from version 2.6 on)."""
    return device.type == "cuda" and hasattr(torch.library, "triton_op") and find_spec("triton") is not None


@final
class CompiledProgram:
    """A `LayerProgram` whose passes are compiled at their first call."""

    def __init__(self, model: FlatModel, sample: Tensor, *, tf32: bool = False, own_products: bool = True) -> None:
        products: Products = Plain()
        if own_products and can_compile(sample.device):
            from flare.learning.engine.kernels import TensorCores  # needs Triton

            products = TensorCores(tf32=tf32)
        program = LayerProgram(model, tuple(sample.shape), products)
        self.floats_per_sample = program.floats_per_sample
        self.width, self.arrange = program.width, program.arrange
        self._forward, self._backward = _compile(program.forward), _compile(program.backward)
        self._logits = _compile(program.logits)
        self._seen: set[tuple[Any, ...]] = set()

    def gradient(self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Forward and back."""
        losses, *gradients = self._at_any_height(self._forward_and_back, weights, x, labels, shares)
        return losses, gradients

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        (logits,) = self._at_any_height(lambda *arguments: (self._logits(*arguments),), weights, x)
        return logits

    def _forward_and_back(self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, ...]:
        """In two halves: between them stands what the layers keep, which a compiler would rather compute twice."""
        logits, kept = self._forward(weights, x)
        _mark(logits, *(tensor for keep in kept for tensor in keep))
        losses, gradients = self._backward(weights, logits, kept, labels, shares)
        return losses, *gradients

    def _at_any_height(self, work: Callable[..., tuple[Tensor, ...]], *stacks: Tensor) -> tuple[Tensor, ...]:
        """Do `work`, the first time on the example; a compiler takes a height of one for a constant, so it gets two."""
        height = len(stacks[0])
        kind = (len(stacks), *(stack.shape[1:] for stack in stacks))
        if kind not in self._seen:
            self._seen.add(kind)
            rows = torch.arange(_EXAMPLE_HEIGHT, device=stacks[0].device) % height
            with _first_time():
                work(*_mark(*(stack.index_select(0, rows) for stack in stacks)))
        if height > 1:
            return work(*_mark(*stacks))
        answers = work(*_mark(*(torch.cat([stack, stack]) for stack in stacks)))
        return tuple(answer[:1] for answer in answers)


@contextmanager
def _first_time() -> Iterator[None]:
    """Let the compiler compile as often as there are models, and keep its advice on TF32 to itself."""
    config = torch._dynamo.config
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with warnings.catch_warnings(), config.patch({limit: 1000}):
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        yield


def _mark(*stacks: Tensor) -> tuple[Tensor, ...]:
    for stack in stacks:
        torch._dynamo.mark_dynamic(stack, 0)
    return stacks


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._inductor import config

    known: dict[str, Any] = {name: value for name, value in _WANTED.items() if hasattr(config, name)}
    return torch.compile(function, dynamic=False, options=known)
