"""What the base station does with the vectors it receives.

Vectors are summed one at a time, in the order given and in float64. So a sum takes the memory of one vector however
many devices send, and the same vectors in the same order always give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol, final

import torch
from torch import Tensor


class Mean(Protocol):
    """Takes in a vector of each device, one at a time, and ends in their mean, or in what the channel makes of it."""

    def add(self, vector: Tensor, device: int) -> None:
        """Take in the vector of a device, of shape (weights,)."""
        ...

    def end(self) -> Tensor:
        """The mean, in float64, shape (weights,). Called once."""
        ...


@final
class RunningMean:
    """A mean of vectors that come one at a time; each can be forgotten when it has been added.

    `total` is the sum of `count` of them, in float64, where some have been added already; it is written to.
    """

    def __init__(self, total: Tensor | None = None, count: int = 0) -> None:
        self._total = total
        self.count = count

    def add(self, vector: Tensor, device: int = -1) -> None:
        """Take in one more vector of shape (weights,); whose it is does not matter here."""
        if self._total is None:
            self._total = vector.to(torch.float64, copy=True)
        else:
            self._total += vector
        self.count += 1

    def end(self) -> Tensor:
        """The mean of the vectors added, in float64, shape (weights,). Call it once: it divides the sum in place."""
        if self._total is None:
            raise ValueError("there is no mean over no devices: a round in which nobody sends leaves the model as is")
        return self._total.div_(self.count)


@final
class WeightedSum:
    """sum_i weight_i vector_i of vectors that come one at a time: what takes the place of a mean where a policy says
    how much the update of each device counts.

    `weights` has one for each device that may send, >= 0. Where some of them do not, the others count as before; with
    `keep_total` they count for them: the sum is scaled so that the weights of those who sent add up to the same as all.
    """

    def __init__(self, weights: Mapping[int, float], *, keep_total: bool = False) -> None:
        self._weights, self._keep_total = weights, keep_total
        self._sum = torch.zeros(())
        self._added: list[float] = []

    def add(self, vector: Tensor, device: int) -> None:
        """Take in the vector of a device, of shape (weights,)."""
        weight = self._weights[device]
        part = vector.to(torch.float64) * weight
        self._sum = self._sum.add_(part) if self._added else part
        self._added.append(weight)

    def end(self) -> Tensor:
        """The sum, in float64, shape (weights,)."""
        if not self._added:
            raise ValueError("there is no sum over no devices: a round in which nobody sends leaves the model as is")
        sent = math.fsum(self._added)
        if not self._keep_total or sent == 0.0 or len(self._added) == len(self._weights):
            return self._sum
        return self._sum * (math.fsum(self._weights.values()) / sent)


def mean(vectors: Iterable[Tensor]) -> Tensor:
    """The mean of the vectors, in float64, shape (weights,)."""
    running = RunningMean()
    for vector in vectors:
        running.add(vector)
    return running.end()


def move(weights: Tensor, global_lr: float, direction: Tensor) -> Tensor:
    """weights + global_lr * direction, rounded to float32 once (Alg. 2, line 14)."""
    return (weights.double() + global_lr * direction).float()
