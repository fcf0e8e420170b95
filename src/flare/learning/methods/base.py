"""What a learning method is: pure functions around an explicit state.

A round goes: devices are selected -> `rules` says how each of them steps -> they do it -> a `reducer` takes in their
updates, one at a time, and ends in the new global weights. The state is a dictionary of tensors, handed in and handed
back, so that a run can be stored and continued exactly; a method keeps nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, final

import numpy as np
import torch
from torch import Tensor

from flare.learning.aggregate import Mean, RunningMean, move
from flare.learning.job import LocalRule, Update
from flare.learning.tau_bar import mean_strategy
from flare.learning.widths import Widths
from flare.types import Floats, Indices

MethodState = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Round:
    """What the base station knows when the devices have been selected. None of it is written to."""

    weights: Tensor  # (weights,), the global model; never written to
    selected: Indices  # (selected,), ascending
    tau: Floats  # (devices,), local steps of every device of the cell this round; 0 of a device that did not report
    local_lr: float
    global_lr: float
    tau_bar_limit: float = math.inf  # the greatest tau_bar that FLARE may take
    age: Floats | None = None  # (devices,), steps of the global model since a device received it; None: all are fresh
    new_mean: Callable[[], Mean] = RunningMean  # what adds the updates up: the base station, or the channel with noise
    cpu_hz: Floats | None = None  # (devices,), speed of each processor this round; 0 of a device that did not report

    def own(self, *, weights: bool = False) -> Round:
        """The same in arrays of its own, with `weights` also the weights: what a method writes there nobody else
        reads."""
        arrays = {name: each.copy() for name, each in self._arrays().items()}
        return replace(self, weights=self.weights.clone() if weights else self.weights, **arrays)

    def changed_from(self, before: Round) -> list[str]:
        """The names of the arrays that are not what they were."""
        if self is before:
            return []
        was = before._arrays()
        return [name for name, each in self._arrays().items() if each.tobytes() != was[name].tobytes()]

    def _arrays(self) -> dict[str, Any]:
        arrays = {"selected": self.selected, "tau": self.tau, "age": self.age, "cpu_hz": self.cpu_hz}
        return {name: each for name, each in arrays.items() if each is not None}


@final
@dataclass(frozen=True, eq=False)
class Sizes:
    """How large the models are that devices train, where they differ."""

    num_weights: Indices  # (devices,), what each of them sends
    work: Floats  # (devices,), what its step costs, as a share of a step with the whole model


class Reducer(Protocol):
    """Takes in the updates of a round, one at a time and in any order; each can be forgotten when it was added, and
    changed. Only for FLARE's own methods are they held on a GPU, and added up at the end (`flare.learning.together`):
    their reducers leave updates as they are."""

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """Take in the update of a selected device that stepped by `rule`."""
        ...

    def end(self) -> tuple[Tensor, MethodState]:
        """The new global weights, a dense tensor of shape (weights,) and floating-point type, and the new state, from
        what was added: one update at least. Called once."""
        ...


class Method(Protocol):
    """A way of learning from devices that do different numbers of steps."""

    uplink_models: int
    """How many vectors of the model's size a device sends in a round: 1, or 2 with control variates or gradients."""
    downlink_models: int
    """How many such vectors the devices are sent: 1, or 2 with a control variate or a mean gradient."""
    needs_gradients: bool
    """Whether `rules` needs the mean gradient of the selected devices' own data at the global weights."""
    sends_control: bool
    """Whether devices also send the change of a control variate: their rules then have `control`."""

    keeps_models: bool
    """Whether devices compare features with those of the model with which they ended when they last trained: rules have
    a contrast where there is one, whose `previous` is that model. Nodes of a fleet keep it themselves."""
    needs_codec: str
    """The one codec with which its updates are sent; empty: any."""
    asynchronous: bool
    """Whether devices compute across rounds (`flare.rounds.asynchrony`), also where the settings do not say so."""
    needs_fresh: bool
    """Whether it must hear updates in the round in which their devices received the model, so that it cannot be
    asynchronous. One that needs gradients or sends controls cannot be either."""

    @property
    def max_devices(self) -> int | None:
        """How many devices it takes in a round at most, whatever the policy; None: as many as are selected."""
        ...

    @property
    def needs_widths(self) -> bool:
        """Whether it gives devices narrower models: it must then be `fitted` before anything else is asked of it."""
        ...

    def on_nodes(self) -> Method:
        """The method where devices are nodes of a fleet, which keep themselves what is theirs; itself where that makes
        no difference."""
        ...

    def fitted(self, widths: Widths) -> Method:
        """The method for a model of these widths; itself where they do not matter. ValueError says why it cannot."""
        ...

    def sizes(self, devices: Indices, cpu_hz: Floats) -> Sizes | None:
        """The models of the devices that are there, by their numbers and the speeds of their processors this round;
        None: all train the whole model."""
        ...

    @property
    def step_cost(self) -> float:
        """What a local step costs a device in time and energy, as a multiple of a plain one with the same model."""
        ...

    @property
    def needs_smoothness(self) -> bool:
        """Whether it goes by the smoothness of the loss: `Round.tau_bar_limit` is then what that allows."""
        ...

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """The state before the first round."""
        ...

    def steps(self, tau: Floats) -> Floats:
        """How many of the steps that they could do the devices are asked for, shape (devices,)."""
        ...

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """The state for as many devices as `tau` has: a fleet may have grown since. `tau` is that of `Round`."""
        ...

    def reference_steps(self, state: MethodState, now: Round) -> float:
        """The reference number of steps of this round, tau_bar (recorded; only FLARE steps by it)."""
        ...

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """How each selected device steps, in the order of `now.selected`; `common_gradient` is the mean of theirs, in
        float64, where the method needs it."""
        ...

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """What takes in the updates of this round; `now.weights` must not be written to, and `state` should not."""
        ...


def same_delta(rule: LocalRule, delta: Tensor) -> Tensor:
    """An update as it was sent."""
    return delta


@final
class MeanReducer:
    """w + rate * mean(part_i), where part_i is the update of device i, or what `part` makes of it."""

    def __init__(
        self,
        now: Round,
        state: MethodState,
        *,
        part: Callable[[LocalRule, Tensor], Tensor] = same_delta,
        rate: Callable[[list[int]], float] | None = None,
    ) -> None:
        """`state` is the one after the round; `rate` is a function of the devices that sent, by default eta_g."""
        self._now, self._state = now, state
        self._part, self._rate = part, rate
        self._mean = now.new_mean()
        self._devices: list[int] = []

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """Add the device's part to the mean."""
        self._mean.add(self._part(rule, update.delta), device)
        self._devices.append(device)

    def end(self) -> tuple[Tensor, MethodState]:
        """Alg. 2, line 14."""
        rate = self._now.global_lr if self._rate is None else self._rate(sorted(self._devices))
        return move(self._now.weights, rate, self._mean.end()), self._state


class ReducerAround:
    """Hands updates to another reducer. Derive from it to do more: with the weights in which that one ends, or with
    what devices know of their own updates. The base station must not need them one by one: over the air it hears a sum.
    """

    def __init__(self, inner: Reducer) -> None:
        self._inner = inner

    @property
    def takes_mean(self) -> bool:
        """Whether what takes in the updates is a mean."""
        return takes_mean(self._inner)

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """Hand the update on."""
        self._inner.add(device, rule, update)

    def end(self) -> tuple[Tensor, MethodState]:
        """What the inner reducer ends in."""
        return self._inner.end()


def takes_mean(reducer: Reducer) -> bool:
    """Whether a reducer needs no more of the updates than one mean, so that the channel can add them up."""
    return isinstance(reducer, MeanReducer) or (isinstance(reducer, ReducerAround) and reducer.takes_mean)


def method_takes_mean(method: Method) -> bool:
    """Whether a method needs no more of the updates than one mean: asked of its reducer in a round of one device."""
    weights, one = torch.zeros(1), np.ones(1)
    now = Round(weights, np.zeros(1, dtype=np.intp), one, local_lr=1.0, global_lr=1.0)
    return takes_mean(method.reducer(method.enrol(method.start(1, 1), one), now))


class PlainMethod:
    """What most methods share: nothing is remembered, devices do all the steps they can, the mean of updates is taken.

    A method takes this as its base and says what it does otherwise.
    """

    uplink_models = 1
    downlink_models = 1
    needs_gradients = False
    sends_control = False
    keeps_models = False
    needs_codec = ""
    asynchronous = False
    needs_fresh = False

    @property
    def max_devices(self) -> int | None:
        """As many as are selected."""
        return None

    @property
    def needs_widths(self) -> bool:
        """All devices train the whole model."""
        return False

    def on_nodes(self) -> Method:
        """The method itself."""
        return cast("Method", self)

    def fitted(self, widths: Widths) -> Method:
        """The method itself. Called only where `needs_widths`."""
        return cast("Method", self)

    def sizes(self, devices: Indices, cpu_hz: Floats) -> Sizes | None:
        """All train the whole model."""
        return None

    @property
    def step_cost(self) -> float:
        """That of a plain step."""
        return 1.0

    @property
    def needs_smoothness(self) -> bool:
        """It does not."""
        return False

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """Nothing is remembered."""
        return {}

    def steps(self, tau: Floats) -> Floats:
        """All that they can do."""
        return tau

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """Nothing is remembered."""
        return state

    def reference_steps(self, state: MethodState, now: Round) -> float:
        """The mean steps of the selected devices."""
        return mean_strategy(now.tau, now.tau, now.selected)

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """The mean of the updates, Eq. (3)."""
        return MeanReducer(now, state)
