"""Methods around another one: its devices and its mean, but another step of the base station (server optimisers).

The inner method says how devices step and what their updates come to. The step from the global weights w to where it
would move them at the global rate 1, d = inner(w) - w, is the pseudo-gradient (Reddi et al., 2021, Alg. 1: with FedAvg
inside it is their Delta_t, the mean of the updates). What is done with d is what such methods differ in; the server
rate is the global rate of the settings, eta_g (`learning.global_lr`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from flare.config import setting
from flare.config.declared import read, split_options
from flare.learning.job import LocalRule
from flare.learning.methods.base import Method, MethodState, PlainMethod, Reducer, ReducerAround, Round, Sizes
from flare.learning.methods.registry import METHODS
from flare.learning.widths import Widths
from flare.types import Floats, Indices

_VECTORS = ("uplink_models", "downlink_models", "needs_gradients", "sends_control")
_INNER = "inner."  # what the names of the inner method's state begin with


@dataclass(frozen=True)
class AroundMethod(PlainMethod, ABC):
    """What server optimisers share. The state is that of the inner method, named `inner.*`, and `vectors` of their own,
    each of shape (weights,) and in float64; in a round in which nobody sends they stay as they are."""

    inner: str = setting("fedavg", "method whose devices and mean it takes, by name")
    inner_options: tuple[str, ...] = setting((), "options of that method, such as tau_bar=mes", of=str)

    def __post_init__(self) -> None:
        """Send and ask for what the inner method does."""
        for name in (*_VECTORS, "keeps_models", "needs_fresh", "needs_codec"):
            object.__setattr__(self, name, getattr(self.around, name))

    @cached_property
    def around(self) -> Method:
        """The inner method; ValueError where there is none of that name, or it has no such options."""
        kind = METHODS.find(self.inner)
        try:
            made = kind.make(**read(kind, split_options(self.inner_options)))
        except ValueError as error:
            raise ValueError(f"inner_options of the method: {str(error).removeprefix('--option: ')}") from None
        if isinstance(made, AroundMethod):
            raise ValueError(
                f"the inner method is '{self.inner}', which is itself around another; name one that is not, such as "
                "fedavg or flare"
            )
        return made

    @abstractmethod
    def vectors(self, num_weights: int) -> MethodState:
        """Its own vectors before the first round."""

    @abstractmethod
    def server_step(self, own: MethodState, now: Round, target: Tensor) -> tuple[Tensor, MethodState]:
        """The new weights in float64 and its new vectors, where the inner method would have moved to `target`."""

    @property
    def needs_smoothness(self) -> bool:
        """Where the inner method does."""
        return self.around.needs_smoothness

    @property
    def needs_widths(self) -> bool:
        """Where the inner method does."""
        return self.around.needs_widths

    def on_nodes(self) -> Method:
        """The same around the inner method as it is there."""
        return self._with(self.around.on_nodes())

    def fitted(self, widths: Widths) -> Method:
        """The same around the inner method for that model."""
        return self._with(self.around.fitted(widths))

    def _with(self, inner: Method) -> Method:
        made = copy(self)
        made.__dict__["around"] = inner
        return made

    def sizes(self, devices: Indices, cpu_hz: Floats) -> Sizes | None:
        """Those of the inner method."""
        return self.around.sizes(devices, cpu_hz)

    @property
    def step_cost(self) -> float:
        """That of the inner method."""
        return self.around.step_cost

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """Its own vectors, and the start of the inner method."""
        return _joined(self.vectors(num_weights), self.around.start(num_weights, num_devices))

    def steps(self, tau: Floats) -> Floats:
        """Those of the inner method."""
        return self.around.steps(tau)

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """As the inner method does; a vector of the base station has nothing to do with the number of devices."""
        own, inner = _parts(state)
        return _joined(own, self.around.enrol(inner, tau))

    def reference_steps(self, state: MethodState, now: Round) -> float:
        """That of the inner method."""
        return self.around.reference_steps(_parts(state)[1], now)

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Those of the inner method."""
        return self.around.rules(_parts(state)[1], now, common_gradient)

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """The inner method's, and after it the step of the base station."""
        own, inner = _parts(state)
        own = {name: vector.to(now.weights.device) for name, vector in own.items()}
        return _ServerStep(self, own, now, self.around.reducer(inner, replace(now, global_lr=1.0)))


class _ServerStep(ReducerAround):
    """Takes the step of the inner method as a pseudo-gradient."""

    def __init__(self, method: AroundMethod, own: MethodState, now: Round, inner: Reducer) -> None:
        super().__init__(inner)
        self._method, self._own, self._now = method, own, now

    def end(self) -> tuple[Tensor, MethodState]:
        """The new weights, rounded to float32 once, and the new state."""
        target, inner = super().end()
        weights, own = self._method.server_step(self._own, self._now, target)
        return weights.float(), _joined(own, inner)


def pseudo_gradient(now: Round, target: Tensor) -> Tensor:
    """d = target - w, in float64."""
    return target.double() - now.weights.double()


def zeros(num_weights: int) -> Tensor:
    """A vector of zeros for the state."""
    return torch.zeros(num_weights, dtype=torch.float64)


def _joined(own: MethodState, inner: MethodState) -> MethodState:
    return own | {f"{_INNER}{name}": value for name, value in inner.items()}


def _parts(state: MethodState) -> tuple[MethodState, MethodState]:
    """Its own vectors, and the state of the inner method."""
    inner = {name.removeprefix(_INNER): value for name, value in state.items() if name.startswith(_INNER)}
    return {name: value for name, value in state.items() if not name.startswith(_INNER)}, inner
