"""Energy of sending with no more power than the time left asks for, and the band that saves most of it.

A device that has s seconds for its payload of S bits on the band b needs, of the power P that it has,

    share(b, s)  =  (b / snr_hz) (e^u - 1),     u = S ln2 / (s b),     snr_hz = P h^2 / N_0          (Shannon)

and radiates E = s P share. More band saves energy, and so does more time, in the same way, since E is a function of the
product s b but for a factor:

    dE/db  =  -(s P / snr_hz) phi(u),     dE/ds  =  -(b P / snr_hz) phi(u),     phi(u) = 1 + (u - 1) e^u  >= 0

Where a hertz costs `price` (joule, or whatever E is weighed in), the best band has  (s P / snr_hz) phi(u) = price.
Written out, (u - 1) e^(u - 1) = (y - 1) / e with y = price snr_hz / (s P), so that u = 1 + W0((y - 1) / e) by Lambert's
function. `nats_at` solves phi(u) = y in logarithms, where neither end of the range overflows, and keeps the digits that
W0 loses near its branch point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np

from flare.types import Floats, Indices
from flare.wireless.rate import LN2

LEAST_POWER = 1e-12
"""The least share of its power that a device is asked to send with: then it is done before it has to be."""
_SERIES_BELOW = 0.05  # there 1 + (u - 1) e^u has lost digits, and the series has the rest
LEAST_NATS = 1e-150
"""The least u that is told from 0: its square is still a number."""
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Senders:
    """Devices that have `send_s` each for their update; arrays of shape (devices,).

    cost        what a joule that is radiated counts, > 0
    least_hz    the band under which not even all of the power carries the update in time
    """

    payload_bits: Floats
    send_s: Floats
    snr_hz: Floats
    power_w: Floats
    cost: Floats
    least_hz: Floats

    def of(self, devices: Indices) -> Self:
        """Some of them, in this order."""
        return replace(self, **{each.name: getattr(self, each.name)[devices] for each in fields(self)})

    @property
    def num_devices(self) -> int:
        """How many there are."""
        return len(self.send_s)

    def power_share(self, bandwidth_hz: Floats) -> Floats:
        """Which share of its power each needs on its band, at most 1."""
        return power_share(self.payload_bits, self.send_s, bandwidth_hz, self.snr_hz)

    def energy_j(self, bandwidth_hz: Floats) -> Floats:
        """What each radiates on its band."""
        return self.power_w * self.send_s * self.power_share(bandwidth_hz)

    def log_slope(self, bandwidth_hz: Floats) -> Floats:
        """The logarithm of what a hertz more would save each of them, in what the joules count."""
        return self._log_scale + log_phi(self.payload_bits * LN2 / self.send_s / bandwidth_hz)

    def band_at(self, log_price: float, widest_hz: float, guess: Floats | None = None) -> tuple[Floats, Floats, Floats]:
        """The best band of each at a price of a hertz, not under `least_hz` and not over `widest_hz`, its derivative by
        the logarithm of the price, 0 where a limit holds, and u; from a `guess` of u that is quicker."""
        nats = nats_at(log_price - self._log_scale, guess)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            free_hz = self.payload_bits * LN2 / self.send_s / nats
            slope = -free_hz * _psi(nats) / nats**2
        bandwidth_hz = np.clip(free_hz, self.least_hz, np.maximum(widest_hz, self.least_hz))
        return bandwidth_hz, np.where(bandwidth_hz == free_hz, slope, 0.0), nats

    @cached_property
    def _log_scale(self) -> Floats:
        return np.log(self.cost) + np.log(self.send_s) + np.log(self.power_w) - np.log(self.snr_hz)


def power_share(payload_bits: Floats, send_s: Floats, bandwidth_hz: Floats, snr_hz: Floats) -> Floats:
    """Which share of its power a device needs to send so many bits in a time on a band, at most 1; see above."""
    with np.errstate(over="ignore", invalid="ignore"):
        share = bandwidth_hz / snr_hz * np.expm1(payload_bits * LN2 / (send_s * bandwidth_hz))
    return np.fmin(share, 1.0)


def least_energy(senders: Senders, total_hz: float, log_price: float | None = None) -> Floats:
    """The division of a band that minimises the weighed sum of the energies, shape (devices,); the devices must fit.

    All devices whose band is not `least_hz` have the same slope (KKT); its logarithm is found by Newton's method, kept
    inside a bracket, from `log_price` where that is near.
    """
    least_hz = senders.least_hz
    if senders.num_devices == 1 or math.fsum(least_hz) >= total_hz * (1.0 - 4.0 * _EPS):
        return least_hz * (total_hz / math.fsum(least_hz))
    low = float(senders.log_slope(np.full(senders.num_devices, total_hz)).min())  # somebody alone takes all of the band
    high = float(senders.log_slope(least_hz).max())  # everybody has its least
    price = 0.5 * (low + high) if log_price is None or not low < log_price < high else log_price
    nats: Floats | None = None
    for _ in range(200):
        bandwidth_hz, slope, nats = senders.band_at(price, total_hz, nats)
        over_hz = float(bandwidth_hz.sum()) - total_hz
        low, high = (price, high) if over_hz > 0.0 else (low, price)
        if abs(over_hz) <= 4.0 * _EPS * total_hz or high - low <= 4.0 * _EPS * max(abs(low), abs(high), 1.0):
            break
        total_slope = float(slope.sum())
        step = price - over_hz / total_slope if total_slope < 0.0 else math.nan
        price = step if low < step < high else 0.5 * (low + high)
    return _to_the_last_hertz(bandwidth_hz, least_hz, total_hz)


def _to_the_last_hertz(bandwidth_hz: Floats, least_hz: Floats, total_hz: float) -> Floats:
    """The bandwidths with what rounding left of the band, or took too much of it, in proportion to what each has above
    its least."""
    spare_hz = bandwidth_hz - least_hz
    total_spare = math.fsum(spare_hz)
    if total_spare <= 0.0:
        return bandwidth_hz * (total_hz / math.fsum(bandwidth_hz))
    return least_hz + spare_hz * (max(total_hz - math.fsum(least_hz), 0.0) / total_spare)


def whole_blocks(senders: Senders, bandwidth_hz: Floats, block_hz: float, num_blocks: int) -> Floats:
    """A division in whole blocks near a division in any parts, where `least_hz` are whole blocks: rounded down, and
    each block that is left goes where it saves most."""
    least = np.rint(senders.least_hz / block_hz)
    blocks = np.maximum(np.floor(bandwidth_hz / block_hz * (1.0 + 4.0 * _EPS)), least)
    while blocks.sum() > num_blocks:  # rounding alone
        blocks[int(np.argmax(blocks - least))] -= 1.0
    left = int(num_blocks - blocks.sum())
    each = left // senders.num_devices if left > 8 * senders.num_devices else 0
    blocks, left = blocks + each, left - each * senders.num_devices
    for _ in range(left):
        saved = senders.cost * (senders.energy_j(blocks * block_hz) - senders.energy_j((blocks + 1.0) * block_hz))
        blocks[int(np.argmax(saved))] += 1.0
    return blocks * block_hz


def log_phi(nats: Floats) -> Floats:
    """ln phi(u) = ln(1 + (u - 1) e^u), u > 0."""
    return nats + np.log(_psi(nats))


def nats_slope(nats: Floats) -> Floats:
    """d ln phi / d ln u, from 2 upwards."""
    return np.maximum(nats, LEAST_NATS) ** 2 / _psi(nats)


def nats_at(log_y: Floats, guess: Floats | None = None) -> Floats:
    """The u with phi(u) = y, from the logarithm of y.

    In ln u, ln phi is convex and rises at a slope of 2 or more, so that Newton's method from the right side comes down
    on the root. It starts on the right side: phi(u) >= u^2 / 2, and phi(u) >= e^(u - 1) where u >= 1. From a `guess`
    on the left, the first step goes to the right, no farther than that.
    """
    with np.errstate(over="ignore"):
        most = np.exp(0.5 * (log_y + LN2))
    most = np.maximum(np.where(log_y > 0.0, np.minimum(most, 1.0 + log_y), most), LEAST_NATS)
    nats = most if guess is None else np.minimum(guess, most)
    for _ in range(60):
        psi = _psi(nats)
        step = (nats + np.log(psi) - log_y) * psi / nats**2  # of ln u
        bounded = np.minimum(np.maximum(-step, -20.0), 20.0)  # np.clip takes several times as long of a few numbers
        nats = np.minimum(np.maximum(nats * np.exp(bounded), LEAST_NATS), most)
        if float(np.abs(step).max(initial=0.0)) <= 1e-14:
            break
    return nats


def _psi(nats: Floats) -> Floats:
    """e^-u phi(u) = u - 1 + e^-u."""
    u = np.maximum(nats, LEAST_NATS)
    if float(u.min(initial=1.0)) >= _SERIES_BELOW:
        return u + np.expm1(-u)
    series = 1.0 + u * (2.0 / 3.0 + u * (0.25 + u * (1.0 / 15.0 + u * (1.0 / 72.0 + u * (1.0 / 420.0 + u / 2880.0)))))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(u < _SERIES_BELOW, 0.5 * u**2 * series * np.exp(-u), u + np.expm1(-u))
