"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al., 2020, option II).

Paper -> code: c -> control, c_i -> device_control[i], N -> the devices of the cell, S -> the selected.

    local step      w  <-  w - eta_l (g(w) + c - c_i)
    device          c_i'  =  c_i - c - delta_i / (tau_i eta_l)
    base station    w  <-  w + eta_g mean(delta_i),     c  <-  c + M / K mean(c_i' - c_i)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from flare.learning import aggregate
from flare.learning.job import LocalRule, Update
from flare.learning.methods.base import MethodState, Round
from flare.learning.tau_bar import mean_strategy


@final
class Scaffold:
    """Equal rates and a drift c - c_i; w + eta_g mean(delta_i). A device also sends the change of its control.

    The state is `control`, of shape (weights,), and `device_control`, of shape (devices, weights), zero at first; the
    control of the base station is the mean of those of the devices.
    """

    uplink_models = 2
    needs_gradients = False

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """All controls are zero."""
        return {"control": torch.zeros(num_weights), "device_control": torch.zeros(num_devices, num_weights)}

    def tau_bar(self, state: MethodState, now: Round) -> float:
        """The mean steps, for the record."""
        return mean_strategy(now.tau, now.tau, now.selected)

    def rules(self, state: MethodState, now: Round, weights: Tensor, gradients: Sequence[Tensor]) -> list[LocalRule]:
        """Gradient descent corrected by c - c_i."""
        control = state["control"].to(weights.device)
        return [
            LocalRule(lr=now.local_lr, steps=int(now.tau[i]), drift=control - state["device_control"][i].to(control))
            for i in now.selected.tolist()
        ]

    def aggregate(
        self, state: MethodState, now: Round, weights: Tensor, rules: Sequence[LocalRule], updates: Sequence[Update]
    ) -> tuple[Tensor, MethodState]:
        """The mean of the updates, and the controls that follow from them."""
        control = state["control"].to(weights.device)
        changes = [_control_change(control, rule, update) for rule, update in zip(rules, updates, strict=True)]
        device_control = state["device_control"].to(weights.device, copy=True)
        for i, change in zip(now.selected.tolist(), changes, strict=True):
            device_control[i] += change
        share = len(now.selected) / len(device_control)  # M / K
        moved = aggregate.move(weights, now.global_lr, aggregate.mean(update.delta for update in updates))
        return moved, {
            "control": aggregate.move(control, share, aggregate.mean(changes)),
            "device_control": device_control,
        }


def _control_change(control: Tensor, rule: LocalRule, update: Update) -> Tensor:
    """c_i' - c_i = -c - delta_i / (tau_i eta_l), shape (weights,)."""
    return -control - update.delta / (rule.steps * rule.lr)
