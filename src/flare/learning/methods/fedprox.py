"""FedProx: FedAvg whose devices are pulled back to the global weights (Li et al., 2020).

A device descends f_i(w) + mu / 2 |w - w_r|^2; with mu = 0 it is FedAvg, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor

from flare.learning import aggregate
from flare.learning.job import LocalRule, Update
from flare.learning.methods.base import MethodState, Round
from flare.learning.methods.steps import equal_rates
from flare.learning.tau_bar import mean_strategy


@final
class FedProx:
    """Equal rates and a proximal term of weight `mu`; w + eta_g mean(delta_i)."""

    uplink_models = 1
    needs_gradients = False

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """Nothing is remembered."""
        return {}

    def tau_bar(self, state: MethodState, now: Round) -> float:
        """The mean steps, for the record."""
        return mean_strategy(now.tau, now.tau, now.selected)

    def rules(self, state: MethodState, now: Round, weights: Tensor, gradients: Sequence[Tensor]) -> list[LocalRule]:
        """Gradient descent on the loss with the proximal term."""
        return equal_rates(now, mu=self.mu)

    def aggregate(
        self, state: MethodState, now: Round, weights: Tensor, rules: Sequence[LocalRule], updates: Sequence[Update]
    ) -> tuple[Tensor, MethodState]:
        """The mean of the updates."""
        return aggregate.move(weights, now.global_lr, aggregate.mean(update.delta for update in updates)), state
