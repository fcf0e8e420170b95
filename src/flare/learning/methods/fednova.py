"""FedNova: the base station averages the devices' progress for each step, not their progress (Wang et al., 2020).

Devices step as under FedAvg; an update is divided by the steps it took, and the mean is multiplied by tau_eff. With the
weights 1 / M of this paper, tau_eff = mean(tau_i); a larger one, such as max(tau_i), is a larger global step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor

from flare.learning import aggregate
from flare.learning.job import LocalRule, Update
from flare.learning.methods.base import MethodState, Round
from flare.learning.methods.steps import equal_rates
from flare.learning.tau_bar import TAU_BARS


@final
class FedNova:
    """Equal rates; w + eta_g tau_eff mean(delta_i / tau_i)."""

    uplink_models = 1
    needs_gradients = False

    def __init__(self, tau_eff: str = "mes") -> None:
        self.strategy = TAU_BARS[tau_eff]

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """Nothing is remembered."""
        return {}

    def tau_bar(self, state: MethodState, now: Round) -> float:
        """tau_eff."""
        return self.strategy(now.tau, now.tau, now.selected)

    def rules(self, state: MethodState, now: Round, weights: Tensor, gradients: Sequence[Tensor]) -> list[LocalRule]:
        """Plain gradient descent."""
        return equal_rates(now)

    def aggregate(
        self, state: MethodState, now: Round, weights: Tensor, rules: Sequence[LocalRule], updates: Sequence[Update]
    ) -> tuple[Tensor, MethodState]:
        """The normalised mean of the updates."""
        pairs = zip(rules, updates, strict=True)
        per_step = aggregate.mean(update.delta.double() / rule.steps for rule, update in pairs)
        return aggregate.move(weights, now.global_lr * self.tau_bar(state, now), per_step), state
