"""What belongs to the rows of a stack of jobs: the samples of each step, and the step itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flare.learning.engine.tensor_data import TensorData
from flare.learning.job import Job
from flare.types import Indices


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
        shares = np.where(np.arange(indices.shape[1]) < sizes[:, None], share[:, None], 0.0)[by_step]
        return cls(
            np.bincount(step_of).tolist(),
            data.indices(indices),
            torch.from_numpy(shares.astype(np.float32)).to(data.device),
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
class Descent:
    """w <- w - lr (g + drift + mu (w - w_start)) for every row at once, each with its own rule; Eq. (8) for FLARE.

    masks   those of the rules, in rows, where they have some: weights whose mask is 0 stay
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        starts: Callable[[], Tensor],
        sizes: list[int],
        device: torch.device,
        masks: Tensor | None = None,
    ) -> None:
        rules = [job.rule for job in jobs]
        self._sizes = sizes
        self._minus_lr = torch.tensor([-rule.lr for rule in rules], device=device)[:, None]
        self._mu = torch.tensor([rule.mu for rule in rules], device=device)[:, None]
        self._starts = starts() if any(rule.mu != 0.0 for rule in rules) else None
        self._outside = None if masks is None else (masks[:, : sum(sizes)] == 0.0)
        if self._outside is not None and not bool(self._outside.any()):
            self._outside = None
        self._drift = None
        if any(rule.drift is not None for rule in rules):
            self._drift = torch.zeros(len(jobs), sum(sizes), device=device)
            for row, rule in zip(self._drift, rules, strict=True):
                if rule.drift is not None:
                    row.copy_(rule.drift)

    def __call__(self, stack: Tensor, gradients: Sequence[Tensor]) -> None:
        """Step the rows of `stack`, the first ones of all; writes into both arguments."""
        count, ends = len(stack), np.cumsum(self._sizes).tolist()
        minus_lr, mu = self._minus_lr[:count], self._mu[:count]
        for size, end, gradient in zip(self._sizes, ends, gradients, strict=True):
            mine = slice(end - size, end)
            weights, direction = stack[:, mine], gradient.reshape(count, size)
            if self._drift is not None:
                direction = direction + self._drift[:count, mine]
            if self._starts is not None:
                direction = direction.addcmul(weights - self._starts[:count, mine], mu)
            if self._outside is not None:
                direction = direction.masked_fill(self._outside[:count, mine], 0.0)
            weights.addcmul_(direction, minus_lr)
