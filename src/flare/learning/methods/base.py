"""What a learning method is: two pure functions and an explicit state.

A round goes: devices are selected -> `rules` says how each of them steps -> an engine does it -> `aggregate` makes the
new global weights. The state is a dictionary of tensors, handed in and handed back, so that a run can be stored and
continued exactly; a method keeps nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from flare.learning.job import LocalRule, Update
from flare.types import Floats, Indices

MethodState = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Round:
    """What the base station knows when the devices have been selected."""

    selected: Indices  # (selected,), ascending
    tau: Floats  # (devices,), local steps that every device of the cell reports this round
    local_lr: float
    global_lr: float
    tau_bar_limit: float = math.inf  # the greatest tau_bar that FLARE may take


class Method(Protocol):
    """A way of learning from devices that do different numbers of steps."""

    uplink_models: int
    """How many vectors of the model's size a device sends in a round: 1, or 2 with control variates or gradients."""
    needs_gradients: bool
    """Whether `rules` needs the gradient of every selected device's own data at the global weights."""

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """The state before the first round."""
        ...

    def tau_bar(self, state: MethodState, now: Round) -> float:
        """The reference number of steps of this round (recorded; only FLARE steps by it)."""
        ...

    def rules(self, state: MethodState, now: Round, weights: Tensor, gradients: Sequence[Tensor]) -> list[LocalRule]:
        """How each selected device steps, in the order of `now.selected`; `gradients` is empty unless needed."""
        ...

    def aggregate(
        self, state: MethodState, now: Round, weights: Tensor, rules: Sequence[LocalRule], updates: Sequence[Update]
    ) -> tuple[Tensor, MethodState]:
        """The new global weights and the new state; neither `weights` nor `state` is written to."""
        ...
