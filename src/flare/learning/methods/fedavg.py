"""FedAvg: every device steps at the same rate, the base station averages (McMahan et al., 2017; Eqs. (2) and (3)).

With the steps that each device can do this is the paper's flexible aggregation, with the same number of steps for all
its fixed aggregation.
"""

from __future__ import annotations

from typing import final

import numpy as np
from torch import Tensor

from flare.learning.job import LocalRule
from flare.learning.methods.base import MethodState, PlainMethod, Round
from flare.learning.methods.steps import equal_rates
from flare.types import Floats


@final
class FedAvg(PlainMethod):
    """Equal rates; w + eta_g mean(delta_i). With `fixed_steps` every device does that many, whatever it could do."""

    def __init__(self, fixed_steps: int | None = None) -> None:
        self.fixed_steps = fixed_steps

    def steps(self, tau: Floats) -> Floats:
        """All that they can do, or the fixed number."""
        return tau if self.fixed_steps is None else np.full(len(tau), float(self.fixed_steps))

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Plain gradient descent, Eq. (2)."""
        return equal_rates(now)
