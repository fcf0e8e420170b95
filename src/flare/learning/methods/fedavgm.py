"""FedAvgM: the base station steps with momentum (Hsu, Qi and Brown, 2019; Reddi et al., 2021, Alg. 1).

Paper -> code: beta -> momentum, v -> the state `momentum`, Delta w -> d (`flare.learning.methods.around`).

    v  <-  beta v + d,        w  <-  w + eta_g v

This is Hsu's sum, not Reddi's mean (1 - beta) d: where all d are alike the steps grow to 1 / (1 - beta) times those of
the inner method. With beta = 0 and eta_g = 1 it is the inner method, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from flare.config import setting
from flare.learning.methods.around import AroundMethod, pseudo_gradient, zeros
from flare.learning.methods.base import MethodState, Round
from flare.learning.methods.registry import method


@method("fedavgm")
@final
@dataclass(frozen=True)
class FedAvgM(AroundMethod):
    """FedAvgM: any method's devices and mean, a base station that steps with momentum.

    The state is `momentum`, of shape (weights,), zero at first, and that of the inner method.
    """

    momentum: float = setting(0.9, "share of the last step's direction that is kept", at_least=0.0, at_most=0.9999)

    def vectors(self, num_weights: int) -> MethodState:
        """No momentum yet."""
        return {"momentum": zeros(num_weights)}

    def server_step(self, own: MethodState, now: Round, target: Tensor) -> tuple[Tensor, MethodState]:
        """w + eta_g v, written from where the inner method moves, so that nothing is rounded where nothing is added."""
        d, kept = pseudo_gradient(now, target), self.momentum * own["momentum"]
        more = (now.global_lr - 1.0) * d + now.global_lr * kept
        return target.double() + more, {"momentum": kept + d}
