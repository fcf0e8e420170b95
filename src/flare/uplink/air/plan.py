"""A round over the air: how long it takes, and what arrives.

All senders compute first; when the slowest has finished, all send at once on the whole band. So the round ends at

    max_i compute_s_i + air_s,    air_s = ceil(n / 2) / B for an update of n weights,

and with a deadline, a device that has not computed air_s before it cannot take part: nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from flare.types import Floats, Indices
from flare.uplink.air.link import AirLink, Moments, as_moments, checked_shares, moments_of
from flare.uplink.air.noise import normal
from flare.uplink.air.scheme import AirScheme, Precoding


@final
@dataclass(frozen=True, eq=False)
class Received:
    """What became of the updates of the senders."""

    mean: Tensor  # (weights,), float64, where the updates were: their mean by shares, and the noise
    noise_std: float  # of each weight of the mean; its square is the expected error of a weight
    power_w: Floats  # (senders,): mean power of each while it sent
    energy_j: Floats  # (senders,): what each radiated


@final
@dataclass(frozen=True, eq=False)
class AirPlan:
    """A round over the air. Arrays are of shape (senders,); where there is no sender, nothing is sent."""

    scheme: AirScheme
    link: AirLink  # of the senders
    shares: Floats  # what each counts in the mean
    compute_s: Floats
    num_weights: int

    @property
    def num_senders(self) -> int:
        """How many devices send."""
        return self.link.num_devices

    @property
    def air_s(self) -> float:
        """How long all of them send."""
        return self.link.air_s(self.num_weights)

    @property
    def latency_s(self) -> float:
        """When all has arrived; nan where nobody sends."""
        return float(np.max(self.compute_s)) + self.air_s if self.num_senders else float("nan")

    def precoding(self, told: Moments) -> Precoding:
        """How the senders scale updates of these moments."""
        if len(told.mean) != self.num_senders or self.num_senders == 0:
            raise ValueError(f"{len(told.mean)} updates for {self.num_senders} senders; give one for each")
        return self.scheme.precoding(self.link, self.shares, told)

    def without(self, missing: Indices) -> AirPlan:
        """The same round without senders that failed, given by their places among the senders."""
        rest = np.setdiff1d(np.arange(self.num_senders), missing)
        return replace(self, link=self.link.of(rest), shares=self.shares[rest], compute_s=self.compute_s[rest])

    def hear(self, key: int) -> Heard:
        """Takes in the update of each sender, one at a time; `key` is that of `receive`."""
        return Heard(self, key)

    def receive(self, updates: Tensor, key: int) -> Received:
        """What the base station hears of the updates of the senders, (senders, weights), in their order; `key` is that
        of the noise (`air_key`)."""
        if updates.ndim != 2 or len(updates) != self.num_senders:
            raise ValueError(
                f"updates have the shape {tuple(updates.shape)} for {self.num_senders} senders; give a row for each"
            )
        heard = self.hear(key)
        for place, update in enumerate(updates):
            heard.add(place, update)
        return heard.end()


@final
class Heard:
    """The sum in the air while it grows: each update can be forgotten when it was added."""

    def __init__(self, plan: AirPlan, key: int) -> None:
        self._plan, self._key = plan, key
        self._total = torch.zeros(())
        self._told: dict[int, Tensor] = {}  # (2,) by place

    def add(self, place: int, update: Tensor) -> None:
        """Take in the vector of a sender, given by its place among the senders; float of shape (weights,)."""
        plan = self._plan
        if not 0 <= place < plan.num_senders or place in self._told:
            raise ValueError(f"sender {place} of {plan.num_senders} sent twice, or is none")
        if update.shape != (plan.num_weights,):
            raise ValueError(
                f"an update has the shape {tuple(update.shape)}; the round was planned for {plan.num_weights}"
            )
        if not self._told:
            self._total = torch.zeros(plan.num_weights, dtype=torch.float64, device=update.device)
        self._total.add_(update, alpha=float(plan.shares[place]))
        self._told[place] = moments_of(update)

    def end(self) -> Received:
        """What was received of those that were added, as if the others had never been asked. Call it once.

        ValueError where nobody sent; NotFiniteError where an update cannot be sent.
        """
        if not self._told:
            raise ValueError("nobody sends over the air in this round: there is nothing to receive")
        order = sorted(self._told)
        told = as_moments([self._told[place] for place in order])
        plan = self._plan.without(np.setdiff1d(np.arange(self._plan.num_senders), order))
        precoding = plan.precoding(told)
        noise_std = precoding.noise_std(plan.shares)
        key = torch.tensor([self._key], dtype=torch.int64, device=self._total.device)
        mean = self._total.div_(float(plan.shares.sum())).add_(normal(key, plan.num_weights)[0], alpha=noise_std)
        power_w = precoding.power_w(plan.link, plan.shares, told)
        return Received(mean, noise_std, power_w, power_w * plan.link.air_s(plan.num_weights))


def plan_air(
    scheme: AirScheme, link: AirLink, num_weights: int, *, compute_s: ArrayLike, shares: ArrayLike | None = None
) -> AirPlan:
    """The round of the devices of `link`, all of which send; by default each counts the same.

    Choose them before, of those that can (`can_send` of the scheme) and that have computed in time.
    """
    number = link.num_devices
    return AirPlan(scheme, link, checked_shares(shares, number), _times(compute_s, number), num_weights)


def _times(compute_s: ArrayLike, num_devices: int) -> Floats:
    times = np.array(compute_s, dtype=np.float64)
    if times.shape != (num_devices,) or not (times >= 0.0).all():
        raise ValueError(f"compute_s must hold a time of at least 0 s for each of the {num_devices} devices")
    return times
