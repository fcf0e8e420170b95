"""A chain of layers for GPUs, every pass of it a few launches of kernels of our own.

A kernel works on a job's own row, cut by the shape of that row alone: a job's numbers do not depend, to the last bit,
on how many jobs are stacked with it. And a call for one job has all kernels compiled that any number of them needs.

Kernels are compiled on the user's machine, by a Triton and for a GPU that may be others than those they were tested
with. So the first call of every kind is carried out by PyTorch, too, for two jobs of random numbers, and both compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flare.learning.engine.chain import LayerProgram
from flare.learning.engine.operations import Gradient, Onto, all_made
from flare.learning.engine.programs import Calls
from flare.learning.engine.stack import Starts
from flare.learning.engine.tensor_data import TensorData
from flare.learning.engine.terms import Anchors
from flare.learning.flat import FlatModel
from flare.rng import stream

_FAR = 1e-2
"""How far numbers may be from PyTorch's, as a share of their length: the order of sums and the places of equal maxima
stay far below, a kernel that was compiled wrongly does not."""
_FAR_TF32 = 0.1  # with 10 bits of the factors; docs/benchmarks/engine.md says what rounding makes of whole jobs
_SMALL = 1e-3  # of the largest length: what is shorter is compared with that much
_NOISE = 0.01  # on the model's weights, which may all be 0


class TornError(RuntimeError):
    """A pass failed after some of its gradients went onto weights: it cannot be done once more from there."""


def has_kernels(device: torch.device) -> bool:
    """Whether there is a GPU and Triton, which PyTorch's packages for GPUs bring along."""
    return device.type == "cuda" and find_spec("triton") is not None


_Work = Callable[..., list[Tensor]]
"""Asks calls for something about some stacks."""


@final
class _Kernels:
    """All calls by kernels, whether what they compute is right or not."""

    def __init__(self, chain: LayerProgram, num_weights: int) -> None:
        from flare.learning.engine import between, rows  # they need Triton

        self._between, self._rows, self._num_weights = between, rows, num_weights
        self.gradient, self.logits, self.features = chain.gradient, chain.logits, chain.features

    def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, labels = self._between.gather(data.train_x, data.train_y, indices)
        return x, labels

    def sums(self, numbers: Tensor) -> Tensor:
        sums: Tensor = self._rows.sums_of(numbers)
        return sums

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        lengths: Tensor = self._rows.lengths_of(gradients)
        return lengths

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        way, lengths = self._rows.moved(starts, stack, self._num_weights)
        return way, lengths


@final
class KernelProgram:
    """A `LayerProgram` of `between.Kernels`. What cannot be compiled or launched, or computes something else than
    PyTorch, fails at the first call for rows of a shape, where another program can take over."""

    def __init__(self, model: FlatModel, sample_shape: tuple[int, ...], *, tf32: bool = False) -> None:
        from flare.learning.engine import between, launching

        chain = LayerProgram(model, sample_shape, between.Kernels(tf32=tf32))
        self._launching, self._model = launching, model
        self._kernels, self._plain = _Kernels(chain, model.num_weights), LayerProgram(model, sample_shape)
        self._far = _FAR_TF32 if tf32 else _FAR
        self.floats_per_sample = chain.floats_per_sample
        self.width, self.arrange = chain.width, chain.arrange
        self._tried: set[tuple[Any, ...]] = set()  # kinds of calls whose kernels compute what PyTorch does

    def batch(self, data: TensorData, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gathered and arranged in one pass."""
        self._try_out("batch", lambda calls, rows: [*calls.batch(data, rows)], indices)
        return self._kernels.batch(data, indices)

    def gradient(
        self,
        weights: Tensor,
        x: Tensor,
        labels: Tensor,
        shares: Tensor,
        anchors: Anchors | None = None,
        onto: Onto | None = None,
    ) -> tuple[Tensor, list[Gradient]]:
        """Forward and back. TornError where it fails after gradients went onto weights."""
        given = (weights, x, labels, shares, *(anchors or ()))
        if onto is None:
            self._try_out("gradient", self._written, *given, is_pass=True)
            return self._kernels.gradient(weights, x, labels, shares, anchors)
        is_step = onto.weights is weights
        name = "gradient onto itself" if is_step else "gradient onto weights"
        self._try_out(name, partial(self._added, is_step), *given, is_pass=True)
        try:
            return self._kernels.gradient(weights, x, labels, shares, anchors, onto)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as why:
            raise TornError(f"weights were changed in part: {why}") from why

    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward alone."""
        self._try_out("logits", lambda calls, *rows: [calls.logits(*rows)], weights, x, is_pass=True)
        return self._kernels.logits(weights, x)

    def features(self, weights: Tensor, x: Tensor) -> Tensor:
        """Forward to the last linear layer."""
        self._try_out("features", lambda calls, *rows: [calls.features(*rows)], weights, x, is_pass=True)
        return self._kernels.features(weights, x)

    def sums(self, numbers: Tensor) -> Tensor:
        """The order in which PyTorch's own add depends on the number of rows."""
        self._try_out("sums", lambda calls, rows: [calls.sums(rows)], numbers)
        return self._kernels.sums(numbers)

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """In the same order for any number of rows."""
        self._try_out("norms", lambda calls, *rows: [calls.norms(rows)], *gradients)
        return self._kernels.norms(gradients)

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        """In one pass."""
        self._try_out("moved", _moved_from_others, stack, starts.rows)
        return self._kernels.moved(stack, starts)

    def _written(
        self, calls: Calls, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, *anchors: Tensor
    ) -> list[Tensor]:
        """The losses of a pass and its gradients."""
        losses, gradients = calls.gradient(weights, x, labels, shares, Anchors(*anchors) if anchors else None)
        return [losses, *all_made(gradients)]

    def _added(
        self, is_step: bool, calls: Calls, weights: Tensor, x: Tensor, labels: Tensor, shares: Tensor, *anchors: Tensor
    ) -> list[Tensor]:
        """The losses of a pass and its gradients, some of them as what they add onto weights, the pass's own where it
        `is_step`."""
        rows = weights.clone()
        at, onto = rows if is_step else weights, Onto(rows, rows.new_ones(len(rows), 1))
        losses, gradients = calls.gradient(at, x, labels, shares, Anchors(*anchors) if anchors else None, onto)
        added = torch.split((rows - weights)[:, : self._model.num_weights], self._model.sizes, dim=1)
        return [losses, *(part if each is None else each for part, each in zip(added, gradients, strict=True))]

    def _try_out(self, name: str, work: _Work, *stacks: Tensor, is_pass: bool = False) -> None:
        """Have `work` done where it has not been done for rows of these shapes: for one job as a rehearsal, in which
        all its kernels are compiled at the same time, and in earnest for a few made-up ones. A pass is given weights,
        samples and what belongs to them."""
        kind = (name, *(stack.shape[1:] for stack in stacks))
        if kind in self._tried:
            return
        if stacks[0].is_cuda:
            with self._launching.rehearsal():
                work(self._kernels, *(stack[:1] for stack in stacks))
        with suppress(torch.cuda.OutOfMemoryError):  # PyTorch's way takes several times as much: then nobody compares
            rows = [_made_up(name, place, stack) for place, stack in enumerate(stacks)]
            self._compare(name, work, self._as_of_a_pass(*rows) if is_pass else rows)
        self._tried.add(kind)

    def _as_of_a_pass(self, weights: Tensor, x: Tensor, *others: Tensor) -> list[Tensor]:
        """Made-up numbers as those that a pass is given: weights near those of the model, and shares that add up to
        one."""
        weights *= _NOISE
        weights[:, : self._model.num_weights] += self._model.flatten()
        weights[:, self._model.num_weights :] = 0.0
        if not others:
            return [weights, x]
        labels, shares, *anchors = others
        shares = torch.full_like(shares, 1.0 / shares.shape[1])
        return [weights, x, labels, shares, *(each if each.dim() > 1 else torch.ones_like(each) for each in anchors)]

    def _compare(self, name: str, work: _Work, rows: Sequence[Tensor]) -> None:
        """RuntimeError where kernels and PyTorch are far apart. Kernels are started twice: from the second time on
        without Triton's help."""
        for _ in range(2 if rows[0].is_cuda else 1):
            mine = [each.double() for each in work(self._kernels, *rows)]
        plain = [each.double() for each in work(self._plain, *rows)]
        lengths = torch.stack([each.norm() for each in plain])
        apart = torch.stack([(one - other).norm() for one, other in zip(mine, plain, strict=True)])
        longest = float(lengths.max())
        far = float((apart / lengths.clamp_min(max(_SMALL * longest, 1e-30))).max())
        if math.isfinite(longest) and not far <= self._far:  # also where kernels answer nan
            raise RuntimeError(
                f"the first {name} by them is {far:.2g} of its length away from PyTorch's, more than the {self._far:g} "
                "that rounding explains: this GPU or this version of Triton computes something else than those they "
                "were tested with"
            )


_JOBS = 2  # that numbers are made up for: what goes wrong from the second one on is seen, too


def _made_up(name: str, place: int, stack: Tensor) -> Tensor:
    """A stack like this with random numbers: those at hand may all be 0, or no numbers any more. Whole numbers stand
    for samples or labels, and stay."""
    if not stack.is_floating_point():
        return stack[:1].expand(_JOBS, *stack.shape[1:]).contiguous()
    drawn = stream(0, "kernels", name, place).standard_normal((_JOBS, *stack.shape[1:]), dtype=np.float32)
    return torch.from_numpy(drawn).to(stack)


def _moved_from_others(calls: Calls, stack: Tensor, rows: Tensor) -> list[Tensor]:
    """The ways of rows, each from another start than the one at its own place where there are two."""
    starts = Starts(rows, torch.arange(len(rows) - 1, -1, -1, device=rows.device))
    return [*calls.moved(stack.clone(), starts)]
