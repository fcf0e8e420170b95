"""One step of a stack of jobs: all that belongs to its rows, and how they move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from flare.learning.engine.operations import Gradient, Onto
from flare.learning.engine.seams import Seams
from flare.learning.engine.stack import Descent

Gradients = Callable[[Tensor, Tensor, Tensor, Seams | None, Onto | None], tuple[Tensor, Sequence[Gradient]]]
"""Losses and gradients of jobs, from the rows of their weights, their samples, the samples' shares, their seams, and
where gradients may go."""
PART = TypeVar("PART", Descent, Seams)


@final
@dataclass(frozen=True, eq=False)
class Step:
    """The rows of jobs that are sorted by their number of steps, most first: those at work are the first ones.

    weights   (jobs, row length)
    sums      of the losses of the steps so far, and of their squares, (jobs, 2) in float64
    shares    what the samples of their batches count in the loss, (jobs, width): the same in every step of a job
    descent   how they step
    seams     what their rules add to plain gradients; None: nothing
    """

    weights: Tensor
    sums: Tensor
    shares: Tensor
    descent: Descent
    seams: Seams | None

    def __call__(self, gradients_of: Gradients, count: int, indices: Tensor) -> None:
        """The first `count` rows move, each on its samples."""
        rows = self.weights[:count]
        loss, gradients = gradients_of(rows, indices, self.shares[:count], self.seams, self.descent.onto(rows))
        exact = loss.double()
        self.sums[:count, 0] += exact
        self.sums[:count, 1].addcmul_(exact, exact)
        self.descent(rows, gradients)

    def tensors(self) -> Iterator[Tensor]:
        """Everything that has a row for each job."""
        yield self.weights
        yield self.sums
        yield self.shares
        yield from _tensors(self.descent)
        if self.seams is not None:
            yield from _tensors(self.seams)

    def blank(self, height: int) -> Step:
        """One of `height` rows of zeros that has all that this one has."""

        def rows(like: Tensor) -> Tensor:
            return torch.zeros(height, *like.shape[1:], dtype=like.dtype, device=like.device)

        seams = None if self.seams is None else _with_tensors(self.seams, rows)
        return Step(rows(self.weights), rows(self.sums), rows(self.shares), _with_tensors(self.descent, rows), seams)

    @property
    def kind(self) -> tuple[tuple[int, ...] | None, ...]:
        """What its rows have; steps of one kind can be taken in each other's place."""
        held = [*_held(self.descent).values(), *({} if self.seams is None else _held(self.seams)).values()]
        return tuple(tuple(each.shape[1:]) if isinstance(each, Tensor) else None for each in held)


def _held(part: Descent | Seams) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _tensors(part: Descent | Seams) -> Iterator[Tensor]:
    return (each for each in _held(part).values() if isinstance(each, Tensor))


def _with_tensors(part: PART, make: Callable[[Tensor], Tensor]) -> PART:
    changes: dict[str, Any] = {name: make(each) for name, each in _held(part).items() if isinstance(each, Tensor)}
    return replace(part, **changes)
