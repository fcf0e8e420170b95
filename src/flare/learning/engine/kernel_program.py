"""A chain of layers for GPUs, every pass of it a few launches of kernels of our own.

A kernel works on a job's own row, cut by the shape of that row alone: a job's numbers do not depend, to the last bit,
on how many jobs are stacked with it. And a pass for one job has all kernels compiled that any number of them needs.

Kernels are compiled on the user's machine, by a Triton and for a GPU that may be others than those they were tested
with. So the first pass of every kind is held against PyTorch's, on numbers drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.operations import Gradient, Outer
from flare.learning.engine.stack import Starts
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.terms import Anchors
from flare.learning.flat import FlatModel
from flare.rng import stream

_FAR = 1e-2
"""How far numbers may be from PyTorch's, as a share of their length: the order of sums and the places of equal maxima
stay far below, a kernel that was compiled wrongly does not."""
_FAR_TF32 = 0.1  # with 10 bits of the factors
_SMALL = 1e-3  # of the largest length: what is shorter is compared with that much
_NOISE = 0.01  # on the model's weights, which may all be 0


def has_kernels(device: torch.device) -> bool:
    """Whether there is a GPU and Triton, which PyTorch's packages for GPUs bring along."""
    return device.type == "cuda" and find_spec("triton") is not None


@final
class KernelProgram:
    """A `LayerProgram` of `between.Kernels`. What cannot be compiled or launched, or computes something else than
    PyTorch, fails at the first call for rows of a shape, where another program can take over."""

    def __init__(self, model: FlatModel, sample_shape: tuple[int, ...], *, tf32: bool = False) -> None:
        from flare.learning.engine import between, launching, rows  # they need Triton

        self._between, self._rows, self._launching = between, rows, launching
        self._chain = LayerProgram(model, sample_shape, between.Kernels(tf32=tf32))
        self._plain, self._far = LayerProgram(model, sample_shape), _FAR_TF32 if tf32 else _FAR
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
        self._try_out("gradient", self._gradient_and_step, weights, x, labels, shares, *(anchors or ()), is_pass=True)
        return self._chain.gradient(weights, x, labels, shares, anchors)

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        self._try_out("logits", lambda program, *rows: [program.logits(*rows)], weights, x, is_pass=True)
        return self._chain.logits(weights, x)

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward to the last linear layer."""
        self._try_out("features", lambda program, *rows: [program.features(*rows)], weights, x, is_pass=True)
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

    def _gradient_and_step(
        self, program: LayerProgram, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, *anchors: Tensor
    ) -> list[Tensor]:
        """The losses of a pass and its gradients, carried out in both ways: written down, and onto a row."""
        losses, gradients = program.gradient(weights, x, labels, shares, Anchors(*anchors) if anchors else None)
        row = torch.zeros_like(weights)
        parts = torch.split(row[:, : self._model.num_weights], self._model.sizes, dim=1)
        answers = [losses]
        for part, gradient in zip(parts, gradients, strict=True):
            if isinstance(gradient, Outer):
                gradient.add_to_(part, part.new_ones(1, 1))
                answers += [part, gradient.made()]
            else:
                answers.append(gradient)
        return answers

    def _try_out(self, name: str, work: Callable[..., Any], *stacks: Tensor, is_pass: bool = False) -> None:
        """Do `work` for one job, where it has not been done for rows of these shapes: once as a rehearsal, in which all
        its kernels are compiled at the same time, and once in earnest. Work that `is_pass` is given a program and
        answers with tensors, which are held against those of PyTorch."""
        kind = (name, *(stack.shape[1:] for stack in stacks))
        if kind in self._tried:
            return
        rows = [stack[:1] for stack in stacks]
        tried = partial(work, self._chain) if is_pass else work
        if rows[0].is_cuda:
            with self._launching.rehearsal():
                tried(*rows)
        if is_pass:
            self._compare(name, work, self._examples(name, rows))
        else:
            tried(*rows)
        self._tried.add(kind)

    def _examples(self, name: str, rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows like these, with numbers that tell something: those at hand may all be 0, or no numbers any more."""
        draw = stream(0, "kernels", name)
        weights, x, *others = (
            torch.from_numpy(draw.standard_normal(row.shape, dtype=np.float32)).to(row.device)
            if row.is_floating_point()
            else row
            for row in rows
        )
        weights *= _NOISE
        weights[:, : self._model.num_weights] += self._model.flatten()
        weights[:, self._model.num_weights :] = 0.0
        if others:
            labels, shares, *anchors = others
            shares = torch.full_like(shares, 1.0 / shares.shape[1])
            others = [labels, shares, *(each if each.dim() > 1 else torch.ones_like(each) for each in anchors)]
        return [weights, x, *others]

    def _compare(self, name: str, work: Callable[..., list[Tensor]], rows: Sequence[Tensor]) -> None:
        """RuntimeError where a pass by kernels and one by PyTorch are far apart. Kernels are started twice: from the
        second time on without Triton's help."""
        for _ in range(2 if rows[0].is_cuda else 1):
            mine = work(self._chain, *rows)
        plain = [each.double() for each in work(self._plain, *rows)]
        lengths = torch.stack([each.norm() for each in plain])
        apart = torch.stack([(one - other).norm() for one, other in zip(mine, plain, strict=True)])
        far = float((apart / lengths.clamp_min(_SMALL * float(lengths.max()))).max())
        if far > self._far:
            raise RuntimeError(
                f"the first {name} by them is {far:.2g} of its length away from PyTorch's, more than the {self._far:g} "
                "that rounding explains: this GPU or this version of Triton computes something else than those they "
                "were tested with"
            )
