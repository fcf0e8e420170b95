"""What belongs to the rows of a stack of jobs: the samples of each step, the step itself, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flare.learning.engine.operations import Gradient, Onto
from flare.learning.engine.tensor_data import TensorData, numbers_onto, onto
from flare.learning.engine.terms import row_norms, update_norms
from flare.learning.flat import FlatModel
from flare.learning.job import Job, Update
from flare.types import Indices

COPIED_AT_ONCE = 64
"""Vectors, where many are copied: one by one, a GPU waits for the program."""


@final
@dataclass(frozen=True, eq=False)
class Starts:
    """The vectors that the rows of a stack start from.

    rows    the distinct ones, (vectors, row length)
    index   which of them is that of each job, (jobs,)
    """

    rows: Tensor
    index: Tensor

    def __call__(self) -> Tensor:
        """A copy for each job, (jobs, row length)."""
        return self.rows.index_select(0, self.index)

    def moved(self, stack: Tensor, num_weights: int) -> tuple[Tensor, Tensor]:
        """As of `Program.moved`, by PyTorch; writes into the stack."""
        moved = stack.sub_(self())[:, :num_weights]
        return moved, update_norms(moved)


def copy_into(rows: Tensor, vectors: Sequence[Tensor]) -> None:
    """Copy vectors into rows, as far as they go, many at a time."""
    for begin in range(0, len(vectors), COPIED_AT_ONCE):
        few = [vector.detach().to(rows) for vector in vectors[begin : begin + COPIED_AT_ONCE]]
        rows[begin : begin + len(few), : len(few[0])] = torch.stack(few)


class PlainRows:
    """What programs do with whole rows of a stack, by PyTorch."""

    _model: FlatModel

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """In an order of PyTorch's."""
        return row_norms(gradients)

    def sums(self, numbers: Tensor) -> Tensor:
        """In an order of PyTorch's."""
        return numbers.sum(1)

    def moved(self, stack: Tensor, starts: Starts) -> tuple[Tensor, Tensor]:
        """Written into the stack."""
        return starts.moved(stack, self._model.num_weights)


def batches_by_step(
    batches: Sequence[Indices], width: int, data: TensorData
) -> tuple[list[tuple[int, Tensor]], Tensor]:
    """The samples of jobs that are sorted by their number of steps, most first, with a batch for each step.

    First, for each step, how many jobs are still at work, and their samples, (jobs at work, width). Then what each
    sample's loss counts in all steps of a job, (jobs, width): the samples of a batch count alike, and 0 is at places
    that only fill up the width.
    """
    sizes = [each.shape[1] for each in batches]
    if len(set(sizes)) == 1:
        counts, indices, _ = _by_step(batches, width, data)
        shares = torch.full((len(batches), width), 1.0 / sizes[0], device=data.device)  # not sent there: all are alike
        shares[:, sizes[0] :] = 0.0
    else:
        counts, indices, _ = _by_step([_filled(each, width) for each in batches], width, data)
        shares = _shares(np.array(sizes), 1.0 / np.array(sizes), width, data.device)
    return list(zip(counts, torch.split(indices, counts), strict=True)), shares


@final
@dataclass(frozen=True, eq=False)
class Feed:
    """The samples of jobs that are sorted by their number, most first, in as many steps as it takes.

    counts    how many jobs are still at work in each step
    indices   training samples, shape (jobs at work, summed over the steps; width), step after step
    shares    what each sample's loss counts, of the same shape: they add up to one over all samples of a job; 0 at
              places that only fill up the width
    """

    counts: list[int]
    indices: Tensor
    shares: Tensor

    @classmethod
    def of(cls, samples: Sequence[Indices], width: int, data: TensorData) -> Feed:
        """Those of jobs with these samples, so many in a step."""
        counts = _lengths(samples)
        steps = -(-counts // width)
        rows = [_filled(each[None], n * width).reshape(n, width) for each, n in zip(samples, steps, strict=True)]
        sizes = np.minimum(np.repeat(counts, steps) - width * _step_of(steps), width)
        at_work, indices, order = _by_step(rows, width, data)
        shares = _shares(sizes[order], np.repeat(1.0 / counts, steps)[order], width, data.device)
        return cls(at_work, indices, shares)

    def steps(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each step the number of jobs at work, and their samples and shares, shape (jobs at work, width)."""
        parts = torch.split(self.indices, self.counts), torch.split(self.shares, self.counts)
        yield from zip(self.counts, *parts, strict=True)


def _shares(sizes: NDArray[np.int64], share: NDArray[np.float64], width: int, device: torch.device) -> Tensor:
    """Rows of the given share at as many places as the sizes say, and of zeros then, (rows, width)."""
    each = share.astype(np.float32)[:, None]
    shares = np.where(np.arange(width) < sizes[:, None], each, np.float32(0.0))
    return onto(torch.from_numpy(shares), device)


def _by_step(rows: Sequence[Indices], width: int, data: TensorData) -> tuple[list[int], Tensor, NDArray[np.intp]]:
    """Rows (steps, samples) of each job, step after step, filled up to a width: how many there are in each step, all of
    them on the device of the data, and which of those in the order of the jobs each one is."""
    step_of = _step_of(_lengths(rows))
    order = np.argsort(step_of, kind="stable")
    indices = np.concatenate(rows).take(order, axis=0)  # (rows, samples)
    lowest, highest, held = indices.min(), indices.max(), len(data.train_y)
    if lowest < 0 or highest >= held:  # a GPU would stop the whole program
        raise ValueError(
            f"a job asks for training sample {lowest if lowest < 0 else highest}: there are 0 to {held - 1}"
        )
    filled = _filled(indices, width).astype(np.int64, copy=False)
    on_device = onto(torch.from_numpy(filled), data.device)
    return np.bincount(step_of).tolist(), on_device, order


def _lengths(arrays: Sequence[Indices]) -> NDArray[np.int64]:
    return np.fromiter(map(len, arrays), np.int64, len(arrays))


def _step_of(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which step of its job each one is, job after job, for jobs of so many steps."""
    return np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)


def _filled(rows: Indices, width: int) -> Indices:
    """Rows of at most `width` samples, filled up with their first one."""
    missing = width - rows.shape[1]
    return np.hstack([rows, np.repeat(rows[:, :1], missing, axis=1)]) if missing else rows


@final
@dataclass(frozen=True, eq=False)
class Descent:
    """w <- w - lr (g + drift + mu (w - w_start)) for every row at once, each with its own rule; Eq. (8) for FLARE.

    sizes      numbers of weights of the model's parameters
    minus_lr   (jobs, 1)
    mu         (jobs, 1), where a rule has one that is not zero
    starts     the weights at the start, (jobs, row length), where there is a mu
    drift      (jobs, weights), where a rule has one
    outside    which weights stay as they are, (jobs, weights), where rules have masks
    """

    sizes: list[int]
    minus_lr: Tensor
    mu: Tensor | None
    starts: Tensor | None
    drift: Tensor | None
    outside: Tensor | None

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        starts: Callable[[], Tensor],
        sizes: list[int],
        device: torch.device,
        masks: Tensor | None = None,
    ) -> Descent:
        """That of jobs, with the masks of their rules in rows, where they have some."""
        rules = [job.rule for job in jobs]
        drift = None
        drifts = [rule.drift for rule in rules if rule.drift is not None]
        if drifts:  # of all: jobs are stacked by what their rules add
            drift = torch.empty(len(jobs), sum(sizes), device=device)
            copy_into(drift, drifts)
        mu = [rule.mu for rule in rules]
        has_mu = any(mu)
        return cls(
            sizes,
            numbers_onto([-rule.lr for rule in rules], device)[:, None],
            numbers_onto(mu, device)[:, None] if has_mu else None,
            starts() if has_mu else None,
            drift,
            None if masks is None else masks[:, : sum(sizes)] == 0.0,
        )

    def onto(self, stack: Tensor) -> Onto | None:
        """Where gradients may go as they are made: the rows of `stack`, the first ones of all, where no rule adds
        anything to a gradient."""
        is_plain = self.drift is None and self.starts is None and self.outside is None
        return Onto(stack, self.minus_lr[: len(stack)]) if is_plain else None

    def __call__(self, stack: Tensor, gradients: Sequence[Gradient]) -> None:
        """Step the rows of `stack`, the first ones of all, in place, by the gradients that did not go `onto` them."""
        count, ends = len(stack), np.cumsum(self.sizes).tolist()
        minus_lr = self.minus_lr[:count]
        for size, end, gradient in zip(self.sizes, ends, gradients, strict=True):
            if gradient is None:
                continue
            mine = slice(end - size, end)
            weights, direction = stack[:, mine], gradient.reshape(count, size)
            if self.drift is not None:
                direction = direction + self.drift[:count, mine]
            if self.starts is not None and self.mu is not None:
                direction = direction.addcmul(weights - self.starts[:count, mine], self.mu[:count])
            if self.outside is not None:
                direction = direction.masked_fill(self.outside[:count, mine], 0.0)
            weights.addcmul_(direction, minus_lr)


@final
class Figures:
    """The mean loss, mean squared loss and length of the update of each row, made of its losses' sums over its steps.

    To read a number is to wait for a GPU: all are read at once, when the first is asked for.

    sums     of the losses and of their squares, (jobs, 2) in float64, on an engine's device
    norms    of the updates, (jobs,) in float64, there too
    steps    of each job
    """

    def __init__(self, sums: Tensor, norms: Tensor, steps: Sequence[int]) -> None:
        self._on_device = torch.cat([sums, norms[:, None]], dim=1)
        self._divisors = np.ones((len(steps), 3))
        self._divisors[:, :2] = np.array(steps)[:, None]

    @cached_property
    def rows(self) -> list[list[float]]:
        """The numbers of each row; waits."""
        numbers: list[list[float]] = (self._on_device.cpu().numpy() / self._divisors).tolist()
        return numbers


@final
class Unread(NamedTuple):
    """The update of a row, whose figures have not been read yet: a GPU may still be at work on it."""

    delta: Tensor
    figures: Figures
    row: int

    def read(self) -> Update:
        """The update; waits."""
        loss, squared_loss, norm = self.figures.rows[self.row]
        return Update(self.delta, loss, squared_loss, norm)
