"""What over-the-air aggregation is given: the radio of the devices that send, and what their updates are like.

Every device uses the whole band at once, and the antenna receives the sum. A complex symbol carries two weights, one in
phase (I) and one in quadrature (Q); at Nyquist's rate the band carries B complex symbols a second, so that n weights
take ceil(n / 2) symbols and ceil(n / 2) / B seconds, whoever sends and however many. Pilots, guard times and cyclic
prefixes are not counted.

Symbols of this package: q_i = p h^2 / (N_0 B) is `snr`, the signal-to-noise ratio at which the base station hears
device i if it sends at full power on the whole band: all that the radio contributes. c_i is `shares`, what device i
counts in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from flare.types import Floats, Indices
from flare.uplink.air.fading import Fading
from flare.uplink.codec import NotFiniteError, check_num_weights


@final
@dataclass(frozen=True, eq=False)
class AirLink:
    """The uplink of some devices in one round, arrays of shape (devices,).

    snr_hz          p h^2 / N_0 with path loss, shadowing and fading, > 0; p is the power limit
    power_w         p, the limit on the mean power that a device radiates while it sends, > 0
    bandwidth_hz    B, the whole band
    mean_snr_hz     the same without fading; `snr_hz` where there is none
    fading          the law of what lies between the two; given with `mean_snr_hz`, or neither is
    """

    snr_hz: Floats
    power_w: Floats
    bandwidth_hz: float
    mean_snr_hz: Floats
    fading: Fading

    def __init__(
        self,
        snr_hz: ArrayLike,
        power_w: ArrayLike,
        bandwidth_hz: float,
        *,
        mean_snr_hz: ArrayLike | None = None,
        fading: Fading | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "snr_hz", positive("snr_hz", snr_hz))
        put(self, "power_w", positive("power_w", power_w, len(self.snr_hz)))
        put(self, "bandwidth_hz", float(positive("bandwidth_hz", [bandwidth_hz])[0]))
        mean = self.snr_hz if mean_snr_hz is None else positive("mean_snr_hz", mean_snr_hz, len(self.snr_hz))
        put(self, "mean_snr_hz", mean)
        put(self, "fading", Fading() if fading is None else fading)
        if (self.fading.law == "none") != (mean_snr_hz is None):
            raise ValueError(
                f"the law of fading is '{self.fading.law}' and mean_snr_hz is {'not ' if mean_snr_hz is None else ''}"
                "given; give a law other than none and mean_snr_hz, or neither"
            )

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self.snr_hz)

    @property
    def snr(self) -> Floats:
        """q_i: signal-to-noise ratio of a device at full power on the whole band."""
        return self.snr_hz / self.bandwidth_hz

    @property
    def mean_snr(self) -> Floats:
        """The same without fading."""
        return self.mean_snr_hz / self.bandwidth_hz

    @property
    def fading_gain(self) -> Floats:
        """f_i: what fading leaves of the power."""
        return self.snr_hz / self.mean_snr_hz

    def of(self, devices: Indices | Sequence[int]) -> AirLink:
        """The link of some of the devices, in the order given."""
        at = np.asarray(devices, dtype=np.intp)
        mean = None if self.fading.law == "none" else self.mean_snr_hz[at]
        return AirLink(self.snr_hz[at], self.power_w[at], self.bandwidth_hz, mean_snr_hz=mean, fading=self.fading)

    def air_s(self, num_weights: int) -> float:
        """How long `num_weights` real numbers take on the air, in seconds."""
        return num_symbols(num_weights) / self.bandwidth_hz


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """What each sender tells of its update beside the air: two numbers, whose time is not counted; shape (senders,)."""

    mean: Floats  # of its entries
    mean_square: Floats  # of its entries

    def around(self, offset: float) -> Floats:
        """The mean square of the entries less `offset`."""
        spread = self.mean_square - 2.0 * offset * self.mean + offset**2
        return np.maximum(spread, 0.0)  # rounding


def num_symbols(num_weights: int) -> int:
    """Complex symbols that carry `num_weights` real numbers, two in each."""
    check_num_weights(num_weights)
    return (num_weights + 1) // 2


def moments(updates: Tensor) -> Moments:
    """The moments of a stack of updates (senders, weights), each by itself; see `as_moments`."""
    return as_moments([moments_of(update) for update in updates])


def moments_of(update: Tensor) -> Tensor:
    """Mean and mean square of the entries of one update (weights,), in float64 and where it is, shape (2,)."""
    mean = update.mean(dtype=torch.float64)
    return torch.stack([mean, torch.linalg.vector_norm(update, dtype=torch.float64).square() / update.numel()])


def as_moments(told: Sequence[Tensor]) -> Moments:
    """What several updates told by `moments_of`, fetched at once.

    NotFiniteError where an update has an entry that is infinite or not a number: no amplitude can carry it.
    """
    both = torch.stack(list(told)).cpu().numpy() if told else np.zeros((0, 2))
    lost = np.flatnonzero(~np.isfinite(both).all(axis=1))
    if len(lost):
        raise NotFiniteError(lost.tolist(), len(both))
    return Moments(both[:, 0], both[:, 1])


def checked_shares(shares: ArrayLike | None, num_devices: int) -> Floats:
    """c_i of each device, > 0; by default all count the same."""
    return np.ones(num_devices) if shares is None else positive("shares", shares, num_devices)


def positive(name: str, values: Any, num_devices: int | None = None) -> Floats:
    """Numbers above 0 and finite, one for each device; else ValueError that says which is wrong."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, one for each device, got {values!r:.80}") from None
    if array.ndim != 1 or (num_devices is not None and len(array) != num_devices):
        wanted = "each device" if num_devices is None else f"each of the {num_devices} devices"
        raise ValueError(f"{name} has the shape {array.shape}; give one number for {wanted}")
    wrong = np.flatnonzero(~((array > 0.0) & (array < math.inf)))
    if len(wrong):
        where = f" of device {wrong[0]}" if len(array) > 1 or num_devices is not None else ""
        raise ValueError(f"{name}{where} is {array[wrong[0]]:g}; it must be greater than 0 and finite")
    array.setflags(write=False)
    return array
