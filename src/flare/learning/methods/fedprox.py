"""FedProx: FedAvg whose devices are pulled back to the global weights (Li et al., 2020).

A device descends f_i(w) + mu / 2 |w - w_r|^2; with mu = 0 it is FedAvg, to the last bit.
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


@method("fedprox")
@final
@dataclass(frozen=True)
class FedProx(PlainMethod):
    """FedProx: equal rates and a proximal term that pulls devices back to the global weights; the mean."""

    prox_mu: float = setting(0.1, "weight of the proximal term", at_least=0.0)

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent on the loss with the proximal term."""
        return equal_rates(now, mu=self.prox_mu)
