"""FedNova: the base station averages the devices' progress for each step, not their progress (Wang et al., 2020).

Devices step as under FedAvg; an update is divided by the steps it took, and the mean is multiplied by tau_eff. With the
weights 1 / M of this paper, tau_eff = mean(tau_i); a larger one, such as max(tau_i), is a larger global step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from torch import Tensor

from flare.config import setting
from flare.learning.job import LocalRule
from flare.learning.methods.base import MeanReducer, MethodState, PlainMethod, Reducer, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import equal_rates
from flare.learning.tau_bar import TAU_BARS


@method("fednova")
@final
@dataclass(frozen=True)
class FedNova(PlainMethod):
    """FedNova: equal rates; the mean progress a step, times an effective number of steps."""

    tau_eff: str = setting(
        "mes", "effective number of steps: the mean or the most over the selected", choices=("mes", "mas")
    )

    def reference_steps(self, state: MethodState, now: Round) -> float:
        """tau_eff, if all selected devices send."""
        return TAU_BARS[self.tau_eff](now.tau, now.tau, now.selected)

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Plain gradient descent."""
        return equal_rates(now)

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """w + eta_g tau_eff mean(delta_i / tau_i), with tau_eff of the devices that sent."""

        def rate(devices: list[int]) -> float:
            return now.global_lr * TAU_BARS[self.tau_eff](now.tau, now.tau, np.array(devices, dtype=np.intp))

        return MeanReducer(now, state, part=lambda rule, delta: delta.double() / rule.steps, rate=rate)
