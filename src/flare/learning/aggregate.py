"""What the base station does with the vectors it receives.

Sums run over the devices in the order given, one at a time, in float64: they need the memory of one vector however many
devices send, and the same vectors in the same order always give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def mean(vectors: Iterable[Tensor]) -> Tensor:
    """The mean of the vectors, in float64, shape (weights,)."""
    total, count = torch.zeros(()), 0
    for vector in vectors:
        total = torch.add(total, vector, out=total) if count else vector.to(torch.float64, copy=True)
        count += 1
    if count == 0:
        raise ValueError("there is no mean over no devices: a round in which nobody is selected leaves the model as is")
    return total.div_(count)


def move(weights: Tensor, global_lr: float, direction: Tensor) -> Tensor:
    """weights + global_lr * direction, rounded to float32 once (Alg. 2, line 14)."""
    return (weights.double() + global_lr * direction).float()
