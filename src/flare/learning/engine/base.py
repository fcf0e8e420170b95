"""What every engine does: train devices, take gradients and losses, test weights.

An engine is made for one model and one data set and holds no state between calls: the same jobs give the same answers
in whatever order and company (`batched` says where float arithmetic on a GPU limits that).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from flare.learning.job import GradientJob, Job, Score, Update


class Engine(Protocol):
    """Computes what devices would compute."""

    def train(self, jobs: Sequence[Job], meanwhile: Callable[[], None] | None = None) -> list[Update]:
        """Carry out every job; answers in the order of the jobs.

        An engine that has to wait for a GPU calls `meanwhile` before: what that does costs no time then. Others never
        call it.
        """
        ...

    def gradients(self, jobs: Sequence[GradientJob]) -> list[Tensor]:
        """The gradient of each job's mean loss, each of shape (weights,)."""
        ...

    def losses(self, jobs: Sequence[GradientJob]) -> list[float]:
        """Each job's mean loss, forward alone."""
        ...

    def evaluate(self, weights: Sequence[Tensor]) -> list[Score]:
        """Accuracy and loss of each of the weights on the test samples."""
        ...
