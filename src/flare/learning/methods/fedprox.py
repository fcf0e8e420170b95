"""FedProx: FedAvg whose devices are pulled back to the global weights (Li et al., 2020).

A device descends f_i(w) + mu / 2 |w - w_r|^2; with mu = 0 it is FedAvg, to the last bit.
"""

from __future__ import annotations

from typing import final

from torch import Tensor

from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, PlainMethod, Round
from flare.learning.methods.steps import equal_rates


@final
class FedProx(PlainMethod):
    """Equal rates and a proximal term of weight `mu`; w + eta_g mean(delta_i)."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent on the loss with the proximal term."""
        return equal_rates(now, mu=self.mu)
