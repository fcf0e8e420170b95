"""What every engine does: train devices, take gradients and losses, test weights.

An engine is made for one model and one data set and holds no state between calls: the same jobs give the same answers
in whatever order and company (`batched` says where float arithmetic on a GPU limits that).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from torch import Tensor

from flare.learning.job import GradientJob, Job, Score, Update


@final
@dataclass(frozen=True, eq=False)
class Launched:
    """Jobs that an engine was given.

    read         gives the updates, in the order of the jobs; waits where a GPU is still at work on them
    under_way    whether one may be: what is done before they are read costs no time then
    """

    read: Callable[[], list[Update]]
    under_way: bool

    @classmethod
    def done(cls, updates: list[Update]) -> Launched:
        """Jobs that were carried out at once."""
        return cls(lambda: updates, under_way=False)


class Engine(Protocol):
    """Computes what devices would compute."""

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Carry out every job; answers in the order of the jobs."""
        ...

    def launch(self, jobs: Sequence[Job]) -> Launched:
        """Begin with every job. A GPU goes on by itself, and is not waited for here; on a CPU they are carried out."""
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
