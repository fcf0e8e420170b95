"""FedAvg: every device steps at the same rate, the base station averages (McMahan et al., 2017; Eqs. (2) and (3)).

With the steps that each device can do this is the paper's flexible aggregation, with the same number of steps for all
its fixed aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from torch import Tensor

from flare.config import setting
from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, PlainMethod, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import equal_rates
from flare.types import Floats


@method("fedavg")
@final
@dataclass(frozen=True)
class FedAvg(PlainMethod):
    """FedAvg: equal rates, each device does the steps that it can; the mean of the updates."""

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Plain gradient descent, Eq. (2)."""
        return equal_rates(now)


@method("fedavg-fixed")
@final
@dataclass(frozen=True)
class FedAvgFixed(PlainMethod):
    """FedAvg with the same number of steps for every device, whatever it could do; the mean of the updates."""

    fixed_steps: int = setting(3, "steps of every device", at_least=1)

    def steps(self, tau: Floats) -> Floats:
        """The fixed number."""
        return np.full(len(tau), float(self.fixed_steps))

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Plain gradient descent, Eq. (2)."""
        return equal_rates(now)
