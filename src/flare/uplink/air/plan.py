"""A round over the air: who sends, how long it takes, and what arrives.

All senders compute first; when the slowest has finished, all send at once on the whole band. So the round ends at

    max_i compute_s_i + air_s,    air_s = ceil(n / 2) / B for each vector of n weights that a method sends,

and a device that has not computed by deadline_s - air_s cannot take part: nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from flare.types import Floats, Indices
from flare.uplink.air.link import AirLink, Moments, as_moments, checked_shares, moments_of, num_symbols
from flare.uplink.air.noise import normal
from flare.uplink.air.scheme import AirScheme, Mask, Precoding


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
    """A round over the air. Arrays are of shape (senders,) and in the order of `senders`."""

    scheme: AirScheme
    senders: Indices  # among the devices that were asked, ascending; may be empty: then nothing is sent
    link: AirLink  # theirs
    shares: Floats  # what each counts in the mean
    compute_s: Floats
    num_weights: int
    num_vectors: int

    @property
    def num_symbols(self) -> int:
        """Complex symbols that each sends."""
        return self.num_vectors * num_symbols(self.num_weights)

    @property
    def air_s(self) -> float:
        """How long all of them send."""
        return self.num_vectors * self.link.air_s(self.num_weights)

    @property
    def latency_s(self) -> float:
        """When all has arrived; nan where nobody sends."""
        return float(np.max(self.compute_s)) + self.air_s if len(self.senders) else float("nan")

    def precoding(self, told: Moments) -> Precoding:
        """How the senders scale updates of these moments."""
        if len(told.mean) != len(self.senders) or len(self.senders) == 0:
            raise ValueError(f"{len(told.mean)} updates for {len(self.senders)} senders; give one for each")
        return self.scheme.precoding(self.link, self.shares, told)

    def without(self, missing: Indices) -> AirPlan:
        """The same round without senders that failed, given by their places among the senders."""
        rest = np.setdiff1d(np.arange(len(self.senders)), missing)
        return replace(
            self,
            senders=self.senders[rest],
            link=self.link.of(rest),
            shares=self.shares[rest],
            compute_s=self.compute_s[rest],
        )

    def hear(self, key: int, *, expected: Moments | None = None) -> Heard:
        """Takes in one vector of each sender, one at a time; `key` and `expected` are those of `receive`."""
        return Heard(self, key, expected)

    def receive(self, updates: Tensor, key: int, *, expected: Moments | None = None) -> Received:
        """What the base station hears of one vector of each sender, (senders, weights), in their order.

        `key` is that of the noise (`air_key`). The amplitude goes by the moments of the updates, or by those that were
        `expected`; powers are those of the updates in any case.
        """
        if updates.ndim != 2 or len(updates) != len(self.senders):
            raise ValueError(
                f"updates have the shape {tuple(updates.shape)} for {len(self.senders)} senders; give a row for each"
            )
        heard = self.hear(key, expected=expected)
        for place, update in enumerate(updates):
            heard.add(place, update)
        return heard.end()


@final
class Heard:
    """The sum in the air while it grows: each update can be forgotten when it was added."""

    def __init__(self, plan: AirPlan, key: int, expected: Moments | None) -> None:
        self._plan, self._key, self._expected = plan, key, expected
        self._total = torch.zeros(())
        self._told: dict[int, Tensor] = {}  # (2,) by place

    def add(self, place: int, update: Tensor) -> None:
        """Take in the vector of a sender, given by its place among the senders; float of shape (weights,)."""
        plan = self._plan
        if not 0 <= place < len(plan.senders) or place in self._told:
            raise ValueError(f"sender {place} of {len(plan.senders)} sent twice, or is none")
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
        plan = self._plan.without(np.setdiff1d(np.arange(len(self._plan.senders)), order))
        precoding = plan.precoding(told if self._expected is None else self._expected)
        noise_std = precoding.noise_std(plan.shares)
        key = torch.tensor([self._key], dtype=torch.int64, device=self._total.device)
        mean = self._total.div_(float(plan.shares.sum())).add_(normal(key, plan.num_weights)[0], alpha=noise_std)
        power_w = precoding.power_w(plan.link, plan.shares, told)
        return Received(mean, noise_std, power_w, power_w * plan.link.air_s(plan.num_weights))


def can_send(
    scheme: AirScheme,
    link: AirLink,
    num_weights: int,
    *,
    compute_s: ArrayLike,
    deadline_s: float,
    shares: ArrayLike | None = None,
    num_vectors: int = 1,
) -> Mask:
    """Which devices can take part: those that the scheme hears, and that have computed in time; shape (devices,)."""
    last_s = deadline_s - num_vectors * link.air_s(num_weights)
    heard = scheme.can_send(link, checked_shares(shares, link.num_devices))
    return np.asarray(heard & (_times(compute_s, link.num_devices) <= last_s))


def plan_air(
    scheme: AirScheme,
    link: AirLink,
    num_weights: int,
    *,
    compute_s: ArrayLike,
    deadline_s: float,
    shares: ArrayLike | None = None,
    num_vectors: int = 1,
) -> AirPlan:
    """The round of the devices of `link`, which were asked to send: those that cannot (`can_send`) are left out."""
    counted = checked_shares(shares, link.num_devices)
    times = _times(compute_s, link.num_devices)
    mask = can_send(
        scheme,
        link,
        num_weights,
        compute_s=times,
        deadline_s=deadline_s,
        shares=counted,
        num_vectors=num_vectors,
    )
    senders = np.flatnonzero(mask)
    return AirPlan(scheme, senders, link.of(senders), counted[senders], times[senders], num_weights, num_vectors)


def _times(compute_s: ArrayLike, num_devices: int) -> Floats:
    times = np.array(compute_s, dtype=np.float64)
    if times.shape != (num_devices,) or not (times >= 0.0).all():
        raise ValueError(f"compute_s must hold a time of at least 0 s for each of the {num_devices} devices")
    return times
