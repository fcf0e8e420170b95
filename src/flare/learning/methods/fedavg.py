"""FedAvg: every device steps at the same rate, the base station averages (McMahan et al., 2017; Eqs. (2) and (3)).

With the steps that each device can do this is the paper's flexible aggregation, with the same number of steps for all
its fixed aggregation.
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
class FedAvg:
    """Equal rates; w + eta_g mean(delta_i)."""

    uplink_models = 1
    needs_gradients = False

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """Nothing is remembered."""
        return {}

    def tau_bar(self, state: MethodState, now: Round) -> float:
        """The mean steps, for the record."""
        return mean_strategy(now.tau, now.tau, now.selected)

    def rules(self, state: MethodState, now: Round, weights: Tensor, gradients: Sequence[Tensor]) -> list[LocalRule]:
        """Plain gradient descent, Eq. (2)."""
        return equal_rates(now)

    def aggregate(
        self, state: MethodState, now: Round, weights: Tensor, rules: Sequence[LocalRule], updates: Sequence[Update]
    ) -> tuple[Tensor, MethodState]:
        """Eq. (3)."""
        return aggregate.move(weights, now.global_lr, aggregate.mean(update.delta for update in updates)), state
