"""FLARE: the rate of a device is scaled so that all make the same progress, Algorithm 2.

Device i does tau_i steps at the rate eta_l tau_bar / tau_i (Eq. (8)). With equal steps and eta_g = 1 it is FedAvg, to
the last bit (Remark 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from flare.config import setting
from flare.learning.job import LocalRule
from flare.learning.methods.base import MeanReducer, MethodState, PlainMethod, Reducer, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import scaled_rates
from flare.learning.tau_bar import TAU_BARS
from flare.types import Floats


@method("flare")
@final
@dataclass(frozen=True)
class Flare(PlainMethod):
    """FLARE: rates that make all devices progress alike, eta_l tau_bar / tau_i; the mean of the updates.

    The state is `first_tau`, of shape (devices,): the steps reported in the first round in which devices trained,
    zeros before it. FMaS and FMeS go by them.
    """

    tau_bar: str = setting(
        "mas",
        "reference number of steps: the most or the mean over the selected, of this or of the first round; safe: the "
        "most, up to 0.58 / (L local_lr), L estimated at the start",
        choices=tuple(TAU_BARS),
    )

    @property
    def needs_smoothness(self) -> bool:
        """The limit of `safe` follows from it."""
        return self.tau_bar == "safe"

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """No first round yet."""
        return {"first_tau": torch.zeros(num_devices, dtype=torch.float64)}

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """Of a device that was not there in the first round, the first steps that it reports."""
        known = state["first_tau"].cpu().numpy()
        if len(known) == len(tau) == np.count_nonzero(known):
            return state
        first = np.zeros(len(tau))
        first[: len(known)] = known
        if first.any():  # before the first training there are none, and then all are taken at once
            first = np.where(first > 0.0, first, tau)
        return {"first_tau": torch.from_numpy(first)}

    def reference_steps(self, state: MethodState, now: Round) -> float:
        """The reference number of steps; in the first round the fixed strategies are the plain ones."""
        return min(TAU_BARS[self.tau_bar](now.tau, _first_tau(state, now).numpy(), now.selected), now.tau_bar_limit)

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Alg. 2, line 8."""
        return scaled_rates(now, self.reference_steps(state, now))

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """Alg. 2, line 14."""
        return MeanReducer(now, {"first_tau": _first_tau(state, now)})


def _first_tau(state: MethodState, now: Round) -> Tensor:
    """The tensor of the state itself, once it is known: a new one made of its memory would keep all before it alive.
    It is known of a selected device when it is of any: devices that report are enrolled."""
    first = state["first_tau"].cpu()
    return first if first.numpy()[now.selected[0]] > 0.0 else torch.tensor(now.tau, dtype=torch.float64)
