"""Asynchronous rounds: devices compute across rounds, each from the model that it last received.

A device is in one of three states when a round begins:

    free        it was heard in the round before (or there was none): it receives the global model of this round, with
                how to step: rate, steps tau that it can do now, at its processor's present speed. The base station sets
                the rates of the devices that receive a model together, as a method does for those of a round
    computing   `left_s` of its computing remain
    waiting     it has finished (`left_s` = 0) and keeps its update until it is heard

Then, in the order of the clock:

    1.  The model is broadcast to the free devices, and to nobody else; where broadcasts count, that takes as long as
        the weakest of them needs, and the others go on computing meanwhile.
    2.  The policy is asked about everybody: `RoundProblem.compute_s` is what is left of a device's computing, tau the
        steps that it does, the channel that of this round. Whom it selects sends when it has finished.
    3.  The round lasts until the last of them has sent; where nobody can, or under a policy that is periodic, until the
        deadline. Those that were not heard go on.
    4.  The updates that arrived move the global model. Their devices are free; the age of all others, the steps of the
        global model since they received theirs, grows by one, unless nobody was heard: the model is the same then.

What is drawn belongs to the round in which a device received the model: its steps, its processor's speed and its
batches. So the update of a device can be computed when it is heard, from the model that it received; and where
everybody is heard in every round, all is as in synchronous rounds, to the last bit.

The energy of computing is charged once and whole, in the round in which the update is sent; what devices have computed
when a run ends, and nobody heard, is in no record. An update that was sent and lost stays with its device, which waits.

Methods: the rules of a device are numbers (rate, steps, mu, ascent), kept while it computes. Those that need gradients,
control variates or other vectors, which belong to one round, are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from flare.config import Config
from flare.learning.job import LocalRule
from flare.learning.methods.base import Method
from flare.scheduling import POLICIES, RoundProblem
from flare.types import Floats, Indices

FREE = -1
"""In place of a round: the device is to receive the next model."""
_MODEL = "model."


@final
@dataclass(frozen=True, eq=False)
class Underway:
    """What the devices of a run are computing; arrays of shape (devices,), which mean nothing for one that is free.

    began       the round in which it received its model; FREE: it is to receive one
    age         steps of the global model since then; 0 of a free device
    tau         steps that it could do then, as the method asked for them
    compute_s   what they take
    left_s      what is left of it
    energy_j    what they take, 0 when it was charged
    lr, steps, mu, ascent   how it steps (`LocalRule`)
    models      the global weights that are computed from, as they reached the devices, by the round; each once
    """

    began: Indices
    age: Indices
    tau: Floats
    compute_s: Floats
    left_s: Floats
    energy_j: Floats
    lr: Floats
    steps: Indices
    mu: Floats
    ascent: Floats
    models: Mapping[int, Tensor] = field(default_factory=dict)

    @classmethod
    def nobody(cls, num_devices: int) -> Underway:
        """Before the first round all devices are free."""
        whole, zero = np.zeros(num_devices, dtype=np.int64), np.zeros(num_devices)
        return cls(np.full(num_devices, FREE), whole, zero, zero, zero, zero, zero, whole, zero, zero)

    def free(self, devices: Indices) -> Indices:
        """Those of the devices that are to receive the next model."""
        free: Indices = devices[self.began[devices] == FREE]
        return free

    def rule(self, device: int) -> LocalRule:
        """How a device steps."""
        at = (self.lr, self.mu, self.ascent)
        lr, mu, ascent = (float(each[device]) for each in at)
        return LocalRule(lr=lr, steps=int(self.steps[device]), mu=mu, ascent=ascent)

    def after_time(self, seconds: float) -> Underway:
        """After some seconds of computing."""
        return replace(self, left_s=np.maximum(self.left_s - seconds, 0.0))

    def begin(
        self,
        index: int,
        devices: Indices,
        rules: Sequence[LocalRule],
        *,
        tau: Floats,
        compute_s: Floats,
        energy_j: Floats,
    ) -> Underway:
        """With devices that receive the model of round `index`; their rules, and what these cost, in their order."""
        new = {name: getattr(self, name).copy() for name in ARRAYS}
        new["began"][devices], new["age"][devices] = index, 0
        new["tau"][devices], new["energy_j"][devices] = tau, energy_j
        new["compute_s"][devices] = new["left_s"][devices] = compute_s
        for name in ("lr", "steps", "mu", "ascent"):
            new[name][devices] = [getattr(rule, name) for rule in rules]
        return replace(self, **new)

    def after_round(
        self,
        index: int,
        *,
        selected: Collection[int],
        heard: Collection[int],
        lasted_s: float,
        model: Tensor | None,
    ) -> Underway:
        """When round `index` has lasted so long, and the updates of some of the selected devices have arrived.

        `model` is the one that devices received when it began, None where nothing is trained.
        """
        began, age, energy_j = self.began.copy(), self.age + bool(heard), self.energy_j.copy()
        energy_j[list(selected)] = 0.0
        began[list(heard)], age[list(heard)] = FREE, 0
        known = {**self.models, **({} if model is None else {index: model})}
        used = sorted(set(began.tolist()) & set(known))
        models = {number: known[number] for number in used}
        return replace(self.after_time(lasted_s), began=began, age=age, energy_j=energy_j, models=models)

    def on(self, device: torch.device | str) -> Underway:
        """The same with its models on a device."""
        return replace(self, models={number: model.to(device) for number, model in self.models.items()})

    def to_tensors(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in ARRAYS}
        return arrays | {f"{_MODEL}{number}": model for number, model in self.models.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Underway | None:
        """What `to_tensors` took apart; None of no tensors."""
        if not tensors:
            return None
        models = {int(name.removeprefix(_MODEL)): each for name, each in tensors.items() if name.startswith(_MODEL)}
        return cls(**{name: tensors[name].numpy() for name in ARRAYS}, models=models)


ARRAYS = tuple(each.name for each in fields(Underway) if each.name != "models")
"""What has an entry for each device."""


def is_asynchronous(config: Config, method: Method) -> bool:
    """Whether the devices of a run compute across rounds: by the settings, the method or the policy."""
    policy = POLICIES.get(config.scheduling.policy)  # None: a run is read whose plugin is not given
    return config.learning.asynchronous or method.asynchronous or (policy is not None and policy.asynchronous)


def refuse_asynchrony(config: Config, method: Method) -> None:
    """ValueError where a run is asynchronous and its method or policy cannot be."""
    if not is_asynchronous(config, method):
        return
    reasons = {
        "needs the gradients of its devices at the present model": method.needs_gradients,
        "sends its devices a control variate, which is another one when they are heard": method.sends_control,
        "gives its devices vectors that belong to one round": method.needs_fresh,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is not None:
        raise ValueError(
            f"{what_says_so(config, method)}, but {_who_steps(config, method)} {why}: devices that compute across "
            f"rounds are heard in a later one; {_what_to_do(method)}"
        )
    policy = POLICIES.get(config.scheduling.policy)
    if policy is None:
        return
    asks = policy.probes(config.scheduling.options)
    if asks or policy.needs_hardware:
        does = (
            "asks devices what they know of the new model, and some of them still compute from an older model"
            if asks
            else "goes by the speeds of devices in one round or sets them, and some of them have begun to compute in "
            "an earlier round"
        )
        raise ValueError(
            f"{what_says_so(config, method)}, but policy '{policy.name}' {does}; take another policy, or synchronous "
            "rounds"
        )


def _who_steps(config: Config, method: Method) -> str:
    """The method that says how devices step: where one is around another, that inside."""
    inner = getattr(method, "inner", None)
    return f"the method inside it, '{inner}'," if isinstance(inner, str) else f"method '{config.learning.method}'"


def _what_to_do(method: Method) -> str:
    """What may run asynchronously, and whether the same method may run synchronously."""
    if isinstance(getattr(method, "inner", None), str):
        other = "take another inside (-o inner=fedavg, flare, fedprox, fednova, ...)"
    else:
        other = "take another method (fedbuff, fedavg, flare, fedprox, fednova, ...)"
    if method.asynchronous:
        return other
    return f"{other}, or synchronous rounds: learning.asynchronous = false and a policy that is not asynchronous"


def what_says_so(config: Config, method: Method) -> str:
    """Why a run is asynchronous."""
    if config.learning.asynchronous:
        return "learning.asynchronous is true"
    if method.asynchronous:
        return f"method '{config.learning.method}' is asynchronous"
    return f"policy '{config.scheduling.policy}' is asynchronous"


_VECTORS = {
    "drift": "a correction of their gradients (drift)",
    "mask": "a part of the model (mask)",
    "contrast": "features of other models (contrast)",
    "control": "a control variate (control)",
}
"""What a rule may hold that has the size of the model."""


def refuse_vectors(config: Config, method: Method, rules: Sequence[LocalRule]) -> None:
    """ValueError where rules hold vectors: a device that computes across rounds keeps numbers alone."""
    for rule in rules:
        held = [words for name, words in _VECTORS.items() if getattr(rule, name) is not None]
        if rule.subtract_own_gradient:
            held.append("their gradient at the global model")
        if held:
            raise ValueError(
                f"{what_says_so(config, method)}, but {_who_steps(config, method)} has devices train with "
                f"{' and '.join(held)}, which is not kept for devices that compute across rounds; {_what_to_do(method)}"
            )


def as_left(problem: RoundProblem, underway: Underway, devices: Indices, gamma: float) -> RoundProblem:
    """What a policy is asked about `devices`: their own steps, and what is left of their computing."""
    return replace(problem, tau=underway.tau[devices], compute_s=underway.left_s[devices], gamma=gamma)


def over_all(known: Underway | None, num_devices: int) -> Underway:
    """What so many devices compute: newcomers are free."""
    everyone = Underway.nobody(num_devices)
    if known is None:
        return everyone
    rows: dict[str, Any] = {
        name: np.append(getattr(known, name), getattr(everyone, name)[len(known.began) :]) for name in ARRAYS
    }
    return replace(known, **rows)
