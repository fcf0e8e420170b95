"""What stays the same over all rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flare.config import Config
from flare.learning.flat import update_bits
from flare.learning.methods import Method
from flare.scheduling import POLICIES, checks
from flare.theory.conditions import safe_tau_bar
from flare.types import Floats


@dataclass(frozen=True, eq=False)
class BaseStation:
    """The settings of a run and what follows from them for every round, simulated or real.

    `smoothness` is L, where a setting goes by it and somebody could estimate it.
    """

    config: Config
    method: Method
    num_weights: int
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    smoothness: float | None = None

    @property
    def payload_bits(self) -> float:
        """S: what a device sends in a round, with the control variates or gradients that its method adds."""
        own = self.config.run.payload == "model"
        return self.method.uplink_models * float(
            update_bits(self.num_weights) if own else self.config.wireless.payload_bits
        )

    @property
    def max_devices(self) -> int | None:
        """How many devices may send in a round at most; None: as many as fit. An option of every policy."""
        return checks.limit(self.config.scheduling.options.get("max_devices"))

    def gamma(self, tau: Floats) -> float:
        """The weight of participation in a round: as set, eta_g / L, or eta_g / (L eta_l tau_bar).

        The first is the paper's (below Eq. (19)), the second is what makes P2's objective proportional to phi_2 of
        Lemma 1 (docs/errata.md, 12). There tau_bar is the most that it can be: that of all devices that are there,
        whose steps `tau` has, since the selected are not known yet. ValueError where L is zero.
        """
        gamma = self.config.scheduling.gamma
        if not isinstance(gamma, str):
            return gamma
        if not self.smoothness:
            raise ValueError(
                f'scheduling.gamma is "{gamma}", but the loss has no curvature at the start weights (L = 0); set gamma '
                "to a number"
            )
        participation = self.config.learning.global_lr / self.smoothness
        if gamma == "auto":
            return participation
        tau_bar = min(float(tau.max()), self.tau_bar_limit)
        return participation / (self.config.learning.local_lr * tau_bar)

    @property
    def tau_bar_limit(self) -> float:
        """The greatest tau_bar of a round: under `safe` what the condition on the step size allows, else any."""
        if not self.method.needs_smoothness or self.smoothness is None:
            return math.inf
        return safe_tau_bar(self.smoothness, self.config.learning.local_lr)


def policy_options(config: Config) -> dict[str, Any]:
    """The options of the policy in the settings; ValueError for one that it does not have."""
    given = dict(config.scheduling.options)
    POLICIES.find(config.scheduling.policy).check_options(given)
    return given
