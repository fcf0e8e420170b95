"""What a scheme of over-the-air aggregation is, and what it costs: the signal, its noise and its power.

Let x_ij be weight j of device i's update, c_i what the device counts, C = sum c_i. A scheme says who can send, an
offset m and an amplitude A, the same for all senders. Each sender knows its channel h_i (a complex number), inverts its
phase and its size, and puts two weights into a symbol, so that the base station receives

    y_k = sqrt(N_0 B / 2) A sum_i c_i [(x_i,2k - m) + (x_i,2k+1 - m) sqrt(-1)] + z_k,     z_k ~ CN(0, N_0 B).

It divides by sqrt(N_0 B / 2) A C and adds m:

    received_j = sum_i c_i x_ij / C + n_j / (A C),     n_j ~ N(0, 1) independent.

**Error.** What is received is the mean and noise. It is unbiased, with an expected squared error (MSE) of 1/(A C)^2 in
each weight, n/(A C)^2 in all n. The mean is that over the senders: what others would have brought is no part of it.

**Power.** Sender i radiates the symbols sqrt(N_0 B / 2) A c_i (...) / h_i; with v_i the mean of (x_ij - m)^2 over its
weights, their mean power is N_0 B A^2 c_i^2 v_i / |h_i|^2, which is, with q_i = p_i |h_i|^2 / (N_0 B),

    power_i = p_i A^2 c_i^2 v_i / q_i        so that power_i <= p_i  <=>  A^2 <= q_i / (c_i^2 v_i).

(The symbol left half empty by an odd number of weights is counted as if it were full.) So every sender bounds the
amplitude of all: the weakest channel, or the largest update, decides the noise.

Assumed: senders are synchronous to within a symbol, know their channels, which are flat over the band and do not change
while they send, and amplifiers are linear: power is limited in the mean over the symbols and not in each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from flare.config.declared import Interface, Kind
from flare.config.options import NO_OPTIONS
from flare.registry import Registry, first_line
from flare.types import Floats
from flare.uplink.air.link import AirLink, Moments
from flare.uplink.registry import refuse_incomplete

INTERFACE = Interface("air scheme")
Mask = NDArray[np.bool_]


@final
@dataclass(frozen=True)
class Precoding:
    """How all senders scale their updates: m and A of this module."""

    offset: float
    amplitude: float  # of a unit of update, over the noise of a weight; infinite where all updates are the offset

    def noise_std(self, shares: Floats) -> float:
        """Standard deviation of the noise in each weight of the mean, 1/(A C)."""
        return 1.0 / (self.amplitude * math.fsum(shares))

    def power_w(self, link: AirLink, shares: Floats, told: Moments) -> Floats:
        """Mean power of each sender while it sends, shape (senders,)."""
        spread = told.around(self.offset)
        with np.errstate(invalid="ignore"):
            power = link.power_w * (self.amplitude * shares) ** 2 * spread / link.snr
        return np.where(spread > 0.0, power, 0.0)


class AirScheme(ABC):
    """A way of adding updates in the air. It is made of its options alone and keeps nothing between rounds."""

    @abstractmethod
    def can_send(self, link: AirLink, shares: Floats) -> Mask:
        """Which devices are heard if they send, shape (devices,)."""

    @abstractmethod
    def precoding(self, link: AirLink, shares: Floats, told: Moments) -> Precoding:
        """The scale of the senders, whose link, shares and moments these are."""


@dataclass(frozen=True, eq=False)
class AirSchemeKind(Kind):
    """A registered scheme: the class that makes it, and the options that it takes."""

    interface: ClassVar = INTERFACE
    make: Callable[..., AirScheme]


AIR_SCHEMES: Registry[AirSchemeKind] = Registry("air scheme", "air schemes")
"""Every registered scheme by name, in the order of registration."""
S = TypeVar("S", bound=Callable[..., AirScheme])


def air_scheme(name: str) -> Callable[[S], S]:
    """Register the decorated class as the scheme `name`: a dataclass that derives from `AirScheme`, or a function that
    returns one."""

    AIR_SCHEMES.refuse_bare(name, "flare.air_scheme")

    def register(made_of: S) -> S:
        if isinstance(made_of, type):
            refuse_incomplete("air scheme", name, made_of, AirScheme)
        options = INTERFACE.options_of(name, made_of)
        AIR_SCHEMES.add(AirSchemeKind(name, first_line(made_of), options, made_of), made_of)
        return made_of

    return register


def make_air_scheme(name: str, options: Mapping[str, Any] = NO_OPTIONS) -> AirScheme:
    """The scheme of that name with its options; ValueError where there is none, or an option is wrong."""
    kind = AIR_SCHEMES.find(name)
    made = kind.make(**kind.check_options(options))
    if not isinstance(made, AirScheme):
        raise ValueError(f"air scheme '{name}' returned a {type(made).__name__}; it must derive from AirScheme")
    return made
