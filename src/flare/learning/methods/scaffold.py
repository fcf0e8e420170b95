"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al., 2020, option II).

Paper -> code: c -> control, c_i -> device_control[i], N -> the devices of the cell, S -> those that sent.

    local step      w  <-  w - eta_l (g(w) + c - c_i)
    device          c_i'  =  c_i - c - delta_i / (tau_i eta_l)
    base station    w  <-  w + eta_g mean(delta_i),     c  <-  c + M / K mean(c_i' - c_i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flare.learning.aggregate import RunningMean, move
from flare.learning.job import LocalRule, Update, control_change
from flare.learning.methods.base import MethodState, PlainMethod, Reducer, Round
from flare.learning.methods.registry import method
from flare.types import Floats


@method("scaffold")
@final
@dataclass(frozen=True)
class Scaffold(PlainMethod):
    """SCAFFOLD: equal rates, control variates against drift; the mean. Changes of the controls are sent too.

    The state is `control`, of shape (weights,), and `device_control`, of shape (devices, weights), zero at first; the
    control of the base station is the mean of those of the devices.
    """

    uplink_models = 2
    downlink_models = 2
    sends_control = True

    def start(self, num_weights: int, num_devices: int) -> MethodState:
        """All controls are zero."""
        return {"control": torch.zeros(num_weights), "device_control": torch.zeros(num_devices, num_weights)}

    def enrol(self, state: MethodState, tau: Floats) -> MethodState:
        """A newcomer has a control of zero; that of the base station stays the mean of all."""
        known = state["device_control"]
        newcomers = len(tau) - len(known)
        if newcomers <= 0:
            return state
        return {
            "control": state["control"] * (len(known) / len(tau)),
            "device_control": torch.cat([known, known.new_zeros(newcomers, known.shape[1])]),
        }

    def rules(self, state: MethodState, now: Round, common_gradient: Tensor | None) -> list[LocalRule]:
        """Gradient descent corrected by c - c_i."""
        control = state["control"].to(now.weights.device)
        return [
            LocalRule(
                lr=now.local_lr,
                steps=int(now.tau[i]),
                drift=control - state["device_control"][i].to(control),
                control=control,
            )
            for i in now.selected.tolist()
        ]

    def reducer(self, state: MethodState, now: Round) -> Reducer:
        """The mean of the updates, and the controls that follow from them."""
        return _Controls(state, now)


class _Controls:
    """Two means, and the controls of the devices that sent, changed in a copy."""

    def __init__(self, state: MethodState, now: Round) -> None:
        self._now = now
        self._control = state["control"].to(now.weights.device)
        self._device_control = state["device_control"].to(now.weights.device, copy=True)
        self._deltas, self._changes = RunningMean(), RunningMean()

    def add(self, device: int, rule: LocalRule, update: Update) -> None:
        """c_i' - c_i as it was sent; where nothing was lost on the way, it follows from delta_i."""
        change = update.control_change  # (weights,)
        if change is None:
            known = self._control if rule.control is None else rule.control  # c as it reached the device
            change = control_change(known, rule.steps, rule.lr, update.delta)
        self._device_control[device] += change
        self._changes.add(change)
        self._deltas.add(update.delta)

    def end(self) -> tuple[Tensor, MethodState]:
        """The base station's two lines."""
        share = self._deltas.count / len(self._device_control)  # M / K
        return move(self._now.weights, self._now.global_lr, self._deltas.end()), {
            "control": move(self._control, share, self._changes.end()),
            "device_control": self._device_control,
        }
