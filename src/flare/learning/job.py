"""What a device is asked to do in a round, and what it sends back.

Every method of this package asks a device for the same kind of work: some steps of stochastic gradient descent

    w  <-  w - lr (g(w) + drift + mu (w - w_start)),                 the local update, Eq. (8) for FLARE

that differ only in three numbers and a vector. FedAvg sets lr alone; FLARE scales it by tau_bar / tau_i; FedProx pulls
back to the start with mu; SCAFFOLD and FedLin correct the direction by a drift that stays the same all round. So an
engine needs to know this one rule, and every method runs in every engine.

Weights are flat: one float32 vector of shape (weights,), in the order of the module's parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from flare.types import Indices


@dataclass(frozen=True, eq=False)
class LocalRule:
    """How a device steps this round."""

    lr: float
    steps: int
    mu: float = 0.0
    drift: Tensor | None = None  # (weights,)
    subtract_own_gradient: bool = False  # the device takes its own gradient at the start from the drift


@dataclass(frozen=True, eq=False)
class Job:
    """One device's work: where it starts, how it steps, and on which training samples."""

    start: Tensor  # (weights,), shared by the devices of a run; never written to
    rule: LocalRule
    batches: Indices  # (steps, batch size), indices into the training samples


@dataclass(frozen=True, eq=False)
class Update:
    """What a device sends back."""

    delta: Tensor  # (weights,), weights after the last step less those at the start
    loss: float  # training loss, the mean over its steps, each before the step
    squared_loss: float = math.nan  # the mean over its steps of the squared loss
    norm: float = math.nan  # of delta; nan: not computed yet


@dataclass(frozen=True, eq=False)
class GradientJob:
    """A gradient of the loss over given training samples, at given weights (FedLin asks for it)."""

    at: Tensor  # (weights,)
    samples: Indices  # (samples,)


@dataclass(frozen=True)
class Score:
    """How good weights are on the test samples."""

    accuracy: float
    loss: float
