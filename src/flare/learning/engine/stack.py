"""What belongs to the rows of a stack of jobs: the samples of each step, the step itself, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flare.learning.engine.operations import Gradient, Outer, made
from flare.learning.engine.tensor_data import TensorData, onto
from flare.learning.engine.terms import row_norms, update_norms
from flare.learning.flat import FlatModel
from flare.learning.job import Job, Update
from flare.types import Indices

_COPIED_AT_ONCE = 64  # vectors


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
    """Copy vectors into rows, as far as they go, many at a time: one by one, a GPU waits for the program."""
    for begin in range(0, len(vectors), _COPIED_AT_ONCE):
        few = [vector.detach().to(rows) for vector in vectors[begin : begin + _COPIED_AT_ONCE]]
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


@final
@dataclass(frozen=True, eq=False)
class Feed:
    """The samples of jobs that are sorted by their number of steps, most first.

    counts    how many jobs are still at work in each step
    indices   training samples, shape (jobs at work, summed over the steps; width), step after step
    shares    what each sample's loss counts in its step, of the same shape; 0 at places that only fill up the width
    """

    counts: list[int]
    indices: Tensor
    shares: Tensor

    @classmethod
    def of_batches(cls, batches: Sequence[Indices], width: int, data: TensorData) -> Feed:
        """A step for each batch, in which each of its samples counts alike."""
        sizes = np.array([each.shape[1] for each in batches])
        rows = [_filled(each, width) for each in batches]
        steps = np.array([len(each) for each in rows])
        return cls._of_rows(rows, np.repeat(sizes, steps), np.repeat(1.0 / sizes, steps), data)

    @classmethod
    def of_samples(cls, samples: Sequence[Indices], width: int, data: TensorData) -> Feed:
        """As many steps as it takes to go through a job's samples; shares add up to one over all of them."""
        counts = np.array([len(each) for each in samples])
        steps = -(-counts // width)
        rows = [_filled(each[None], n * width).reshape(n, width) for each, n in zip(samples, steps, strict=True)]
        before = width * (np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps))
        sizes = np.minimum(np.repeat(counts, steps) - before, width)
        return cls._of_rows(rows, sizes, np.repeat(1.0 / counts, steps), data)

    @classmethod
    def _of_rows(
        cls, rows: list[Indices], sizes: NDArray[np.int64], share: NDArray[np.float64], data: TensorData
    ) -> Feed:
        """Rows (steps, width) of each job, with the true size and the share of each row in the order of the jobs."""
        steps = np.array([len(each) for each in rows])
        step_of = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
        by_step = np.argsort(step_of, kind="stable")
        indices = np.concatenate(rows)[by_step]  # (rows, width)
        lowest, highest, held = indices.min(), indices.max(), len(data.train_y)
        if lowest < 0 or highest >= held:  # a GPU would stop the whole program
            raise ValueError(
                f"a job asks for training sample {lowest if lowest < 0 else highest}: there are 0 to {held - 1}"
            )
        each = share[by_step].astype(np.float32)[:, None]
        shares = np.where(np.arange(indices.shape[1]) < sizes[by_step][:, None], each, np.float32(0.0))
        return cls(
            np.bincount(step_of).tolist(),
            onto(torch.from_numpy(indices.astype(np.int64, copy=False)), data.device),
            onto(torch.from_numpy(shares), data.device),
        )

    def steps(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each step the number of jobs at work, and their samples and shares, shape (jobs at work, width)."""
        parts = torch.split(self.indices, self.counts), torch.split(self.shares, self.counts)
        yield from zip(self.counts, *parts, strict=True)


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
    mu         (jobs, 1)
    starts     the weights at the start, (jobs, row length), where a rule has a mu; None: none has
    drift      (jobs, weights), where a rule has one
    outside    which weights stay as they are, (jobs, weights), where rules have masks
    """

    sizes: list[int]
    minus_lr: Tensor
    mu: Tensor
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
        if any(rule.drift is not None for rule in rules):
            none = torch.zeros(sum(sizes), device=device)
            drift = torch.empty(len(jobs), sum(sizes), device=device)
            copy_into(drift, [none if rule.drift is None else rule.drift for rule in rules])
        return cls(
            sizes,
            onto(torch.tensor([-rule.lr for rule in rules]), device)[:, None],
            onto(torch.tensor([rule.mu for rule in rules]), device)[:, None],
            starts() if any(rule.mu != 0.0 for rule in rules) else None,
            drift,
            None if masks is None else masks[:, : sum(sizes)] == 0.0,
        )

    def __call__(self, stack: Tensor, gradients: Sequence[Gradient]) -> None:
        """Step the rows of `stack`, the first ones of all, in place.

        A gradient that has not been carried out never is, where no rule adds anything to it: it is added onto the
        weights as it is made.
        """
        count, ends = len(stack), np.cumsum(self.sizes).tolist()
        minus_lr, mu = self.minus_lr[:count], self.mu[:count]
        is_plain = self.drift is None and self.starts is None and self.outside is None
        for size, end, gradient in zip(self.sizes, ends, gradients, strict=True):
            mine = slice(end - size, end)
            weights = stack[:, mine]
            if is_plain and isinstance(gradient, Outer):
                gradient.add_to_(weights, minus_lr)
                continue
            direction = made([gradient])[0].reshape(count, size)
            if self.drift is not None:
                direction = direction + self.drift[:count, mine]
            if self.starts is not None:
                direction = direction.addcmul(weights - self.starts[:count, mine], mu)
            if self.outside is not None:
                direction = direction.masked_fill(self.outside[:count, mine], 0.0)
            weights.addcmul_(direction, minus_lr)


@final
class Figures:
    """The mean loss, mean squared loss and length of the update of each row, shape (jobs, 3), on an engine's device.

    To read a number is to wait for a GPU: all are read at once, when the first is asked for.
    """

    def __init__(self, on_device: Tensor) -> None:
        self._on_device = on_device

    @cached_property
    def rows(self) -> list[list[float]]:
        """The numbers of each row; waits."""
        numbers: list[list[float]] = self._on_device.tolist()
        return numbers


@final
@dataclass(frozen=True, eq=False)
class Unread:
    """The update of a row, whose figures have not been read yet: a GPU may still be at work on it."""

    delta: Tensor
    figures: Figures
    row: int

    def read(self) -> Update:
        """The update; waits."""
        loss, squared_loss, norm = self.figures.rows[self.row]
        return Update(self.delta, loss, squared_loss, norm)
