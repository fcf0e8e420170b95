"""FedAdam and FedYogi: the base station steps every weight at a rate of its own (Reddi et al., 2021, Alg. 2).

Paper -> code: Delta_t -> d (`flare.learning.methods.around`), beta_1 -> momentum, beta_2 -> second_momentum, m -> the
state `momentum`, v -> the state `second_moment`, tau -> adaptivity (tau is the steps of devices here), eta -> server_lr
times the global rate eta_g. For every weight:

    m  <-  beta_1 m + (1 - beta_1) d
    v  <-  beta_2 v + (1 - beta_2) d^2                       FedAdam
    v  <-  v - (1 - beta_2) d^2 sign(v - d^2)                FedYogi
    w  <-  w + eta_g server_lr m / (sqrt(v) + adaptivity)

As in the paper nothing is divided by 1 - beta^t (no correction of the start), and v begins at adaptivity^2, the least
that the paper allows. The paper tunes eta for each task. A step moves a weight by about eta whatever the updates are,
so eta_g = 1, the rate of all other methods, would throw the weights away: `server_lr` brings the default to size.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flare.config import setting
from flare.learning.methods.around import AroundMethod, pseudo_gradient, zeros
from flare.learning.methods.base import MethodState, Round
from flare.learning.methods.registry import method


@dataclass(frozen=True)
class AdaptiveMethod(AroundMethod):
    """What FedAdam and FedYogi share. The state is `momentum` and `second_moment`, both of shape (weights,), and that
    of the inner method."""

    server_lr: float = setting(0.01, "rate of the base station's steps, times global_lr", above=0.0)
    momentum: float = setting(0.9, "share of the mean update that is kept", at_least=0.0, at_most=0.9999)
    second_momentum: float = setting(0.99, "share of its mean square that is kept", at_least=0.0, at_most=0.9999)
    adaptivity: float = setting(0.001, "added to the root mean square: larger is less adaptive", above=0.0, at_most=1e9)

    @abstractmethod
    def second_moment(self, last: Tensor, square: Tensor) -> Tensor:
        """The new v from the last one and d^2, each of shape (weights,)."""

    def vectors(self, num_weights: int) -> MethodState:
        """m = 0 and v = adaptivity^2."""
        return {"momentum": zeros(num_weights), "second_moment": zeros(num_weights) + self.adaptivity**2}

    def server_step(self, own: MethodState, now: Round, target: Tensor) -> tuple[Tensor, MethodState]:
        """The lines of the paper."""
        d = pseudo_gradient(now, target)
        mean = self.momentum * own["momentum"] + (1.0 - self.momentum) * d
        second = self.second_moment(own["second_moment"], d * d)
        step = now.global_lr * self.server_lr * mean / (second.sqrt() + self.adaptivity)
        return now.weights.double() + step, {"momentum": mean, "second_moment": second}


@method("fedadam")
@final
@dataclass(frozen=True)
class FedAdam(AdaptiveMethod):
    """FedAdam: any method's devices and mean, a base station that steps by Adam."""

    def second_moment(self, last: Tensor, square: Tensor) -> Tensor:
        """A mean over the rounds: large updates are soon forgotten."""
        return self.second_momentum * last + (1.0 - self.second_momentum) * square


@method("fedyogi")
@final
@dataclass(frozen=True)
class FedYogi(AdaptiveMethod):
    """FedYogi: any method's devices and mean, a base station that steps by Yogi."""

    def second_moment(self, last: Tensor, square: Tensor) -> Tensor:
        """It moves by a share of d^2, also downwards: large updates are forgotten slowly."""
        return last - (1.0 - self.second_momentum) * square * torch.sign(last - square)
