"""Devices that send wrong vectors on purpose: what robust rules (`flare.rounds.robust`) are tried against.

Attackers do their work as all others do, and tell their true losses. Then they replace every vector that they send, a
gradient (FedLin) as well as an update v, before it is coded or added up in the air:

    noise       a vector of random direction, attack_scale times as long as v
    sign-flip   -attack_scale v
    scaled      attack_scale v
    absent      they are never there: what the others reach alone

Who they are is drawn once with the seed of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from flare.config import Config
from flare.learning.job import Update, norm_of
from flare.rng import stream
from flare.rounds import Observation
from flare.rounds.residuals import Part
from flare.types import Indices

NONE, ABSENT = "none", "absent"
_SIGNS = {"sign-flip": -1.0, "scaled": 1.0}
_NOISE = {Part.UPDATE: "attack", Part.GRADIENT: "attack-gradient"}
"""The stream of the noise that is sent in place of a vector: gradient and update of a round have different ones."""


def attackers_of(config: Config) -> Indices:
    """The devices that are attackers, ascending; ValueError where none would be left."""
    learning, num_devices = config.learning, config.wireless.num_devices
    if learning.attack == NONE:
        return np.zeros(0, dtype=np.intp)
    if learning.attackers >= num_devices:
        raise ValueError(
            f"learning.attackers is {learning.attackers}, and wireless.num_devices is {num_devices}: nobody would be "
            f"left; it must be {num_devices - 1} at most"
        )
    drawn = stream(config.seed, "attackers").permutation(num_devices)[: learning.attackers]
    return np.sort(drawn).astype(np.intp)


@final
@dataclass(frozen=True, eq=False)
class Attack:
    """What the attackers of a run do."""

    config: Config
    attackers: Indices

    @classmethod
    def of(cls, config: Config) -> Attack:
        """By the settings."""
        return cls(config, attackers_of(config))

    @property
    def _wrong(self) -> frozenset[int]:
        """The devices that send something wrong."""
        return frozenset() if self.config.learning.attack == ABSENT else frozenset(self.attackers.tolist())

    def seen(self, everybody: Observation) -> Observation:
        """Those of all devices that are there."""
        if self.config.learning.attack != ABSENT or len(self.attackers) == 0:
            return everybody
        return everybody.only(np.flatnonzero(~np.isin(everybody.devices, self.attackers)))

    def on_updates(self, index: int, updates: Mapping[int, Update]) -> list[Update]:
        """The updates of round `index` by device, as they are sent, in their order."""
        wrong = self._wrong
        return [
            self._update(index, device, update) if device in wrong else update for device, update in updates.items()
        ]

    def on_gradients(self, index: int, devices: Sequence[int], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of devices in round `index`, as they are sent."""
        wrong = self._wrong
        return [
            self._vector(Part.GRADIENT, index, device, each, norm_of(each)) if device in wrong else each
            for device, each in zip(devices, gradients, strict=True)
        ]

    def _update(self, index: int, device: int, update: Update) -> Update:
        norm = self.config.learning.attack_scale * update.norm
        delta = self._vector(Part.UPDATE, index, device, update.delta, update.norm)
        return replace(update, delta=delta, norm=norm)

    def _vector(self, part: Part, index: int, device: int, vector: Tensor, norm: float | Tensor) -> Tensor:
        """What an attacker sends for a vector of this length."""
        learning = self.config.learning
        if learning.attack in _SIGNS:
            return vector * (_SIGNS[learning.attack] * learning.attack_scale)
        noise = stream(self.config.seed, _NOISE[part], index, device).standard_normal(len(vector))
        noise /= np.linalg.norm(noise)
        return (torch.from_numpy(noise).to(vector.device) * (learning.attack_scale * norm)).to(vector.dtype)
