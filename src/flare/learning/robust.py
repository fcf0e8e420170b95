"""Means that a few wrong vectors cannot move far: the median and the trimmed mean of every weight by itself.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
Of n vectors, the k smallest and the k largest numbers of every weight are left out, and the mean of the others is taken

    trimmed mean    k = trim n, rounded up, so that one number at least is left
    median          as many as leave one number, or the two in the middle

so that k vectors, whatever they hold, cannot take a weight out of the range of the others. That needs all vectors at
once: memory grows with their number, where a mean takes that of one. Of one vector or two nothing can be left out.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

MEDIAN, TRIMMED = "median", "trimmed-mean"
_NUMBERS_AT_ONCE = 2**22
"""How many numbers are sorted at once: sorting takes some times their memory."""
_ROUNDING = 1e-9  # of trim n, where it is meant to be a whole number


@final
class TrimmedMean:
    """Holds the vectors that come one at a time, in float32, and ends in their trimmed mean.

    `trim` is the share that is left out at each end, from 0 to 0.5; 0.5: the median.
    """

    def __init__(self, trim: float) -> None:
        self._trim = trim
        self._held: list[Tensor] = []

    def add(self, vector: Tensor, device: int = -1) -> None:
        """Take in one more vector of shape (weights,), of which a copy is kept; whose it is does not matter."""
        self._held.append(vector.to(torch.float32, copy=True))

    def end(self) -> Tensor:
        """Their trimmed mean, in float64, shape (weights,): the same bits in whatever order they came."""
        if not self._held:
            raise ValueError("there is no mean over no devices: a round in which nobody sends leaves the model as is")
        count, num_weights = len(self._held), len(self._held[0])
        left_out = num_trimmed(self._trim, count)
        ended = self._held[0].new_empty(num_weights, dtype=torch.float64)
        for begin in range(0, num_weights, width := max(1, _NUMBERS_AT_ONCE // count)):
            rows = torch.stack([vector[begin : begin + width] for vector in self._held])  # (vectors, some weights)
            kept = rows.sort(dim=0).values[left_out : count - left_out]
            ended[begin : begin + width] = kept.double().mean(dim=0)
        return ended


def num_trimmed(trim: float, count: int) -> int:
    """How many of so many numbers are left out at each end."""
    return min(math.ceil(trim * count - _ROUNDING), (count - 1) // 2)
