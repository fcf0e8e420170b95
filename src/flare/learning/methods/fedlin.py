"""FedLin: local steps along the gradient of all selected devices, at rates that go against their number of steps.

Mitra et al., 2021: a device first sends the gradient of all its data at the global weights, then steps

    w  <-  w - eta_i (g(w) - grad f_i(w_r) + mean_k grad f_k(w_r)),        eta_i = eta / tau_i.

They leave eta free. Here eta = eta_l tau_bar with tau_bar the mean steps of the selected devices: eta_i is eta_l where
all do the same steps, as in every other method, and where they do not, eta_i tau_i is the mean of FedAvg's eta_l tau_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, PlainMethod, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import scaled_rates


@method("fedlin")
@final
@dataclass(frozen=True)
class FedLin(PlainMethod):
    """FedLin: rates that go against the steps, a drift to the mean gradient; the mean. Gradients are sent too."""

    uplink_models = 2
    downlink_models = 2
    needs_gradients = True

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent corrected by the mean gradient less the device's own, which the device subtracts."""
        rules = scaled_rates(now, self.reference_steps(state, now))
        return [replace(rule, drift=common_gradient, subtract_own_gradient=True) for rule in rules]
