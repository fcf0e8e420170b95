"""A method of your own: one class.

flare run --plugin examples/plugins/capped.py --set learning.method=capped
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

import flare
from flare.config import setting
from flare.learning.job import LocalRule
from flare.learning.methods import MethodState, PlainMethod, Round, equal_rates
from flare.types import Floats


@flare.method("capped")
@dataclass(frozen=True)
class Capped(PlainMethod):
    """FedAvg whose devices do at most so many steps, and are pulled back to the global weights."""

    max_steps: int = setting(5, "local steps of a device, at most", at_least=1)
    pull: float = setting(0.0, "weight of the pull to the global weights, FedProx's mu", at_least=0.0)

    def steps(self, tau: Floats) -> Floats:
        """How many of the steps that they could do the devices are asked for."""
        return np.minimum(tau, float(self.max_steps))

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """How each selected device steps."""
        return equal_rates(now, mu=self.pull)
