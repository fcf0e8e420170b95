"""MOON: FedAvg whose devices keep their features near those of the global model (Li, He and Song, 2021, Alg. 1).

Paper -> code: mu -> moon_mu, tau -> temperature (tau is the steps of devices here), w_i^(t-1) -> previous[i], z -> the
features of `flare.learning.features`. A device that has trained before adds to the loss of every sample (Eq. (3))

    -mu log(e^near / (e^near + e^far)),     near = cos(z, z_global) / temperature,
                                            far = cos(z, z_previous) / temperature.

Decided here:

- The authors put a projection head of two layers between features and logits. Here the model stays as it is, so that it
  has the size of every other method's, and z is what its last linear layer is given. Where that is the sample itself
  (model `logistic`) the term is a constant: it costs its time and changes nothing.
- In its first round, whichever that is, a device has no previous model and steps as under FedAvg.
- A device keeps its previous model itself: nothing more is sent. The state has it as the base station knows it, the
  global weights and the update that arrived. Where updates or the broadcast are coded, the device's own differs from it
  by what the codec lost.
- A step has three forward passes and one backward pass, which is worth two of them: 5/3 of the time and energy of a
  plain step, charged in every round of a device, its first too.

With mu = 0 it is FedAvg, to the last bit and on the clock.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from flare.config import setting
from flare.learning.job import Contrast, LocalRule, Update
from flare.learning.methods.base import MeanReducer, MethodState, PlainMethod, Reducer, ReducerAround, Round
from flare.learning.methods.registry import method
from flare.learning.methods.steps import equal_rates
from flare.types import Floats


@method("moon")
@final
@dataclass(frozen=True)
class Moon(PlainMethod):
    """MOON: equal rates, features drawn to the global model's and away from the device's last; the mean.

    The state is `previous`, of shape (devices, weights), the models with which devices ended when they last sent, and
    `has_previous`, of shape (devices,), 1 for devices that have one. With mu = 0 nothing is remembered, and on nodes
    `has_previous` alone.
    """

    moon_mu: float = setting(1.0, "weight of the term that compares features", at_least=0.0)
    temperature: float = setting(0.5, "what cosines of features are divided by", above=0.0)
    _is_on_nodes: ClassVar[bool] = False  # whether previous models lie with the devices, and no copy of them here

    def __post_init__(self) -> None:
        """Without its term its steps are plain ones; with it, rules hold the last models of devices."""
        object.__setattr__(self, "keeps_models", self.moon_mu != 0.0)
        object.__setattr__(self, "needs_fresh", self.moon_mu != 0.0)

    @property
    def step_cost(self) -> float:
        """Five forward passes' worth instead of three."""
        return 5.0 / 3.0 if self.keeps_models else 1.0

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """Nobody has a previous model."""
        if not self.keeps_models:
            return {}
        known = {"has_previous": torch.zeros(num_devices)}
        return known if self._is_on_nodes else {"previous": torch.zeros(num_devices, num_weights), **known}

    def on_nodes(self) -> Moon:
        """Without the models of devices, whose rules have the global weights in their place."""
        made = copy(self)
        object.__setattr__(made, "_is_on_nodes", True)
        return made

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """Newcomers have no previous model."""
        if not state or len(tau) <= len(state["has_previous"]):
            return state
        more = len(tau) - len(state["has_previous"])
        return {name: torch.cat([known, known.new_zeros(more, *known.shape[1:])]) for name, known in state.items()}

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent, on the loss with the second term where a device has a previous model."""
        rules = equal_rates(now)
        if not state:
            return rules
        has_previous = state["has_previous"][now.selected].tolist()
        return [
            replace(rule, contrast=Contrast(self._previous(state, now, i), self.moon_mu, self.temperature))
            if known
            else rule
            for rule, i, known in zip(rules, now.selected.tolist(), has_previous, strict=True)
        ]

    def _previous(self, state: MethodState, now: Round, device: int) -> Tensor:
        return now.weights if self._is_on_nodes else state["previous"][device]

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """The mean of the updates; the models of those that sent are kept."""
        return _Previous(state, now) if state else MeanReducer(now, state)


class _Previous(ReducerAround):
    """The mean, and the last models of the devices that sent, in a copy; in truth each lies on its device."""

    def __init__(self, state: MethodState, now: Round) -> None:
        self._weights = now.weights
        self._state = {name: known.to(now.weights.device, copy=True) for name, known in state.items()}
        super().__init__(MeanReducer(now, self._state))

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """The device's model is the global one and its update."""
        if "previous" in self._state:
            self._state["previous"][device] = self._weights + update.delta
        self._state["has_previous"][device] = 1.0
        super().add(device, rule, update)
