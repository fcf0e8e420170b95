"""FedBuff: the base station steps when a buffer of updates is full, and old updates count for less.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous Aggregation",
AISTATS 2022, Algorithm 1:

    w  <-  w + eta_g / K  sum_i s(age_i) Delta_i,        s(age) = (1 + age)^(-1/2)

Paper -> code: K -> buffer, tau_i(t), the staleness -> `Round.age`: steps of the global model since the device received
the one from which it computed Delta_i. Devices compute across rounds (`flare.rounds.asynchrony`).

Left open, and decided here:

- A round here is one filling of the buffer: at most K devices are heard in it, those whom the policy of the run
  chooses among the ones that have computed in time. In the paper these are the first K to arrive: `dm` is the nearest
  to that; `round-robin` hears those that have waited longest.
- Where fewer than K can be heard before the deadline, the base station steps with these, and K is their number.
- What Delta_i is, and what the mean is taken of, is said by an inner method (`inner`): FedAvg, as in the paper, or any
  other that can be asynchronous.

Where all are fresh and eta_g = 1 it is the inner method, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from flare.config import setting
from flare.learning.job import LocalRule, Update
from flare.learning.methods.around import AroundMethod, pseudo_gradient
from flare.learning.methods.base import MethodState, Reducer, ReducerAround, Round
from flare.learning.methods.registry import method


def discount(age: float) -> float:
    """s(age), what an update counts; 1 of a fresh one."""
    return float((1.0 + age) ** -0.5)


@method("fedbuff")
@final
@dataclass(frozen=True)
class FedBuff(AroundMethod):
    """FedBuff: devices compute across rounds; the mean of a few updates, old ones for less.

    The state is that of the inner method.
    """

    buffer: int = setting(10, "how many devices are heard in a round at most", at_least=1)

    def __post_init__(self) -> None:
        """As the inner method, but for devices that never wait for one another."""
        super().__post_init__()
        object.__setattr__(self, "asynchronous", True)

    @property
    def max_devices(self) -> int | None:
        """K."""
        return self.buffer

    def vectors(self, num_weights: int) -> MethodState:
        """None of its own."""
        return {}

    def server_step(self, own: MethodState, now: Round, target: Tensor) -> tuple[Tensor, MethodState]:
        """w + eta_g d, written from where the inner method moves, so that nothing is rounded where eta_g is 1."""
        return target.double() + (now.global_lr - 1.0) * pseudo_gradient(now, target), {}

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """The inner method's, of discounted updates, and after it the step of the base station."""
        return _Discounted(super().reducer(state, now), now)


class _Discounted(ReducerAround):
    """Hands on updates for what they count; over the air each device scales its own."""

    def __init__(self, inner: Reducer, now: Round) -> None:
        super().__init__(inner)
        self._age = now.age

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """s(age) times the update; a fresh one as it is."""
        age = 0.0 if self._age is None else float(self._age[device])
        if age > 0.0:
            update = replace(update, delta=discount(age) * update.delta.double())
        super().add(device, rule, update)
