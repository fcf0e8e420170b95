"""A chain of layers for GPUs, every pass of it a few launches of kernels of our own.

A kernel works on a job's own row, cut by the shape of that row alone: a job's numbers do not depend, to the last bit,
on how many jobs are stacked with it. And a pass for one job has all kernels compiled that any number of them needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, final

import torch
from torch import Tensor

from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.operations import Gradient, Outer
from flare.learning.engine.stack import Starts
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.terms import Anchors
from flare.learning.flat import FlatModel


def has_kernels(device: torch.device) -> bool:
    """Whether there is a GPU and Triton, which PyTorch's packages for GPUs bring along."""
    return device.type == "cuda" and find_spec("triton") is not None


@final
class KernelProgram:
    """A `LayerProgram` of `between.Kernels`. What cannot be compiled or launched fails at the first call for rows of a
    shape, where another program can take over."""

    def __init__(self, model: FlatModel, sample_shape: tuple[int, ...], *, tf32: bool = False) -> None:
        from flare.learning.engine import between, launching, rows  # they need Triton

        self._between, self._rows, self._launching = between, rows, launching
        self._chain = LayerProgram(model, sample_shape, between.Kernels(tf32=tf32))
        self.floats_per_sample = self._chain.floats_per_sample
        self.width, self.arrange = self._chain.width, self._chain.arrange
        self._model = model
        self._tried: set[tuple[Any, ...]] = set()  # kinds of calls that there are kernels for

    def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gathered and arranged in one pass."""
        gather = self._between.gather
        self._try_out("batch", lambda rows: gather(data.train_x, data.train_y, rows), indices)
        x, labels = gather(data.train_x, data.train_y, indices)
        return x, labels

    def gradient(
        self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, anchors: Anchors | None = None
    ) -> tuple[Tensor, list[Gradient]]:
        """Forward and back."""
        self._try_out("gradient", self._gradient_and_step, weights, x, labels, shares, *(anchors or ()))
        return self._chain.gradient(weights, x, labels, shares, anchors)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        self._try_out("logits", self._chain.logits, weights, x)
        return self._chain.logits(weights, x)

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward to the last linear layer."""
        self._try_out("features", self._chain.features, weights, x)
        return self._chain.features(weights, x)

    def sums(self, numbers: Tensor) -> Tensor:
        """The order in which PyTorch's own add depends on the number of rows."""
        self._try_out("sums", self._rows.sums_of, numbers)
        sums: Tensor = self._rows.sums_of(numbers)
        return sums

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """In the same order for any number of rows."""
        self._try_out("norms", lambda *rows: self._rows.lengths_of(rows), *gradients)
        lengths: Tensor = self._rows.lengths_of(gradients)
        return lengths

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        """In one pass."""
        self._try_out("moved", lambda row: self._rows.moved(starts, row, self._model.num_weights), stack)
        way, lengths = self._rows.moved(starts, stack, self._model.num_weights)
        return way, lengths

    def _gradient_and_step(self, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, *anchors: Tensor) -> None:
        """A pass, and its gradients carried out in both ways, also onto a copy of the weights."""
        _, gradients = self._chain.gradient(weights, x, labels, shares, Anchors(*anchors) if anchors else None)
        copied = weights.clone()
        parts = torch.split(copied[:, : self._model.num_weights], self._model.sizes, dim=1)
        for part, gradient in zip(parts, gradients, strict=True):
            if isinstance(gradient, Outer):
                gradient.made()
                gradient.add_to_(part, part.new_zeros(1, 1))

    def _try_out(self, name: str, work: Callable[..., object], *stacks: Tensor) -> None:
        """Do `work` for one job, where it has not been done for rows of these shapes: once as a rehearsal, in which all
        its kernels are compiled at the same time, and once in earnest."""
        kind = (name, *(stack.shape[1:] for stack in stacks))
        if kind in self._tried:
            return
        rows = [stack[:1] for stack in stacks]
        if rows[0].is_cuda:
            with self._launching.rehearsal():
                work(*rows)
        work(*rows)
        self._tried.add(kind)
