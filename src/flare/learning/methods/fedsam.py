"""FedSAM: FedAvg whose devices take sharpness-aware steps (Qu et al., 2022; Caldarola, Caputo and Ciccone, 2022).

Paper -> code: rho -> sam_rho, g -> the gradient on the step's batch, over all weights of the model together.

    w  <-  w - eta_l g(w + rho g(w) / |g(w)|)

Both gradients are of the same batch, so a step is two passes: it takes twice the time and energy of FedAvg's. With
rho = 0 it is FedAvg, to the last bit and on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from flare.config import setting
from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, PlainMethod, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import equal_rates


@method("fedsam")
@final
@dataclass(frozen=True)
class FedSam(PlainMethod):
    """FedSAM: equal rates, gradients taken uphill of the weights; the mean. A step costs two."""

    sam_rho: float = setting(0.1, "how far uphill gradients are taken, a distance between weights", at_least=0.0)

    @property
    def step_cost(self) -> float:
        """Two gradients a step, but without an ascent."""
        return 1.0 if self.sam_rho == 0.0 else 2.0

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent with gradients from uphill."""
        return equal_rates(now, ascent=self.sam_rho)
