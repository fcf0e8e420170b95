"""A method of your own that takes in updates in its own way, and remembers something from round to round.

flare run --plugin examples/plugins/by_loss.py --set learning.method=by-loss -o share=0.5 --set run.rounds=5
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import flare
from flare.config import setting
from flare.learning.job import LocalRule, Update
from flare.learning.methods import MethodState, PlainMethod, Reducer, Round, equal_rates
from flare.types import Floats


@flare.method("by-loss")
@dataclass(frozen=True)
class ByLoss(PlainMethod):
    """FedAvg in which a device counts the more, the larger its training loss; losses are smoothed over its rounds."""

    share: float = setting(0.5, "how much of a smoothed loss the newest one makes", above=0.0, at_most=1.0)

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """What is remembered before the first round, tensors by name: here a loss of each device, 0 where unknown."""
        return {"loss": torch.zeros(num_devices, dtype=torch.float64)}

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """The same with room for devices that have joined since."""
        more = torch.zeros(len(tau) - len(state["loss"]), dtype=torch.float64)
        return {"loss": torch.cat([state["loss"], more])}

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """How each selected device steps: as in FedAvg."""
        return equal_rates(now)

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """What takes in the updates of a round, one at a time."""
        return _ByLossReducer(self.share, state, now)


class _ByLossReducer:
    """w + eta_g sum_i loss_i delta_i / sum_i loss_i. It keeps one sum: memory does not grow with the updates."""

    def __init__(self, share: float, state: MethodState, now: Round) -> None:
        self._share, self._now = share, now
        self._losses = state["loss"].clone()  # what is handed in is never written to
        self._sum = torch.zeros(len(now.weights), dtype=torch.float64, device=now.weights.device)
        self._total = 0.0

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """Take in the update of a device, in any order."""
        before = float(self._losses[device])
        loss = update.loss if before == 0.0 else (1.0 - self._share) * before + self._share * update.loss
        self._losses[device] = loss
        self._sum += loss * update.delta.double()
        self._total += loss

    def end(self) -> tuple[Tensor, MethodState]:
        """The new global weights and the new state; asked for once, when at least one update was taken in."""
        step = self._sum / self._total if self._total else self._sum
        return (self._now.weights.double() + self._now.global_lr * step).float(), {"loss": self._losses}
