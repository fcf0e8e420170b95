"""Shannon's rate on a share of the band, and its inverse: the bandwidth that a deadline asks for.

Symbols of the paper used in this file: b is `bandwidth_hz`, S is `payload_bits`, p h^2 / N_0 is `snr_hz` (the
bandwidth at which the signal-to-noise ratio is one: all that the radio contributes), t - t_comp is `slack_s`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flare.types import Floats
from flare.units import dbm_to_watt

LN2 = math.log(2.0)


def snr_hz(power_w: Floats, power_gain: Floats, noise_w_per_hz: float) -> Floats:
    """p h^2 / N_0, where `power_gain` is h^2."""
    return power_w * power_gain / noise_w_per_hz


def rate_bps(bandwidth_hz: Floats, snr_hz: Floats) -> Floats:
    """Eq. (5): b log2(1 + p h^2 / (b N_0)), in bit/s; zero on zero bandwidth."""
    with unwarned():
        return _rate_bps(bandwidth_hz, snr_hz)


def _rate_bps(bandwidth_hz: Floats, snr_hz: Floats) -> Floats:
    return np.where(bandwidth_hz > 0.0, bandwidth_hz * np.log1p(snr_hz / bandwidth_hz) / LN2, 0.0)


def upload_s(payload_bits: float | Floats, bandwidth_hz: Floats, snr_hz: Floats) -> Floats:
    """Eq. (6): S / rate, in seconds; infinite on zero bandwidth."""
    with unwarned():
        return bare_upload_s(payload_bits, bandwidth_hz, snr_hz)


def bare_upload_s(payload_bits: float | Floats, bandwidth_hz: Floats, snr_hz: Floats) -> Floats:
    """The same, to be called inside `unwarned`."""
    return payload_bits / _rate_bps(bandwidth_hz, snr_hz)


def unwarned() -> np.errstate:
    """Inside the block numpy does not warn of what the functions here may meet: to enter one for many calls of the bare
    functions takes less time than to enter one for each."""
    return np.errstate(divide="ignore", invalid="ignore", over="ignore")


def downlink_snr_hz(snr_hz: Floats, power_w: Floats, station_power_dbm: float) -> Floats:
    """P_bs h^2 / N_0 of what the base station sends, from p h^2 / N_0 of what devices send with `power_w`: the channel
    is the same both ways."""
    return dbm_to_watt(station_power_dbm) * (snr_hz / power_w)


def broadcast_s(payload_bits: float, bandwidth_hz: float, snr_hz: Floats) -> float:
    """How long the base station sends the same to devices of P_bs h^2 / N_0 `snr_hz` (devices,) on the whole band: all
    of them decode what the weakest can, Eq. (5) and (6) with its channel. Infinite where it hears nothing."""
    return float(upload_s(payload_bits, np.asarray(bandwidth_hz), snr_hz.min()))


def upload_energy_j(power_w: Floats, upload_s: Floats) -> Floats:
    """Energy that a device radiates while it sends: power x time."""
    return power_w * upload_s


def bandwidth_for(payload_bits: float | Floats, slack_s: Floats, snr_hz: Floats) -> Floats:
    """Theorem 3: the least bandwidth that carries `payload_bits` in `slack_s`; infinite where none does."""
    with unwarned():
        bandwidth_hz, _, reachable = _bandwidth(payload_bits, slack_s, snr_hz)
    return np.where(reachable, bandwidth_hz, np.inf)


def bandwidth_and_slope(payload_bits: float | Floats, slack_s: Floats, snr_hz: Floats) -> tuple[Floats, Floats]:
    """The bandwidth of Theorem 3 and its derivative with respect to the slack (Hz/s, negative)."""
    with unwarned():
        return bare_bandwidth_and_slope(payload_bits, slack_s, snr_hz)


def bare_bandwidth_and_slope(payload_bits: float | Floats, slack_s: Floats, snr_hz: Floats) -> tuple[Floats, Floats]:
    """The same, to be called inside `unwarned`."""
    bandwidth_hz, s, reachable = _bandwidth(payload_bits, slack_s, snr_hz)
    # db/dslack = -(b / slack) s / (s - 1 + e^-s), from ds/dL = 1 / f'(s) and dL/dslack = 1 / slack.
    slope_hz_per_s = -(bandwidth_hz / slack_s) * s / (s + np.expm1(-s))
    return np.where(reachable, bandwidth_hz, np.inf), np.where(reachable, slope_hz_per_s, -np.inf)


def _bandwidth(
    payload_bits: float | Floats, slack_s: Floats, snr_hz: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The bandwidth of Theorem 3, the root s that it comes from, and where it is one: where a bandwidth does it.

    With x = snr_hz / b and v = S ln2 / (snr_hz slack_s) the deadline reads ln(1 + x) = v x. The root x = 0 is
    trivial; the wanted one, x > 0, exists only for v < 1, since even infinite bandwidth carries at most
    snr_hz / ln2 bit/s. The printed formula has the wrong sign and does not name the Lambert branch (erratum 1), and
    evaluating W_{-1} near its branch point loses half the digits. In s = ln(1 + x) the equation is

        f(s) = ln((e^s - 1) / s) = -ln v,     b = S ln2 / (slack_s s),

    where f is smooth and convex with slope between 1/2 and 1 on all of s > 0, so that Halley's iteration from
    L + ln(1 + L), L = -ln v (right to first order at both ends, off by 3.5 % at most between), reaches the last bit
    in two steps. The relative error stays near 1e-15 / (1 - v), which is the problem's own condition.
    """
    payload_nat = payload_bits * LN2
    log_inverse_v = np.log(slack_s * (snr_hz / payload_nat))
    s = log_inverse_v + np.log1p(log_inverse_v)
    for _ in range(2):
        minus = -s
        decay, filled, inverse_s = np.exp(minus), -np.expm1(minus), 1.0 / s  # filled is 1 - e^-s
        miss = s + np.log(filled * inverse_s) - log_inverse_v  # f(s) - L
        slope = 1.0 / filled - inverse_s  # f'(s)
        bend = inverse_s * inverse_s - decay / (filled * filled)  # f''(s)
        s = s - 2.0 * miss * slope / (2.0 * slope * slope - miss * bend)
    bandwidth_hz = payload_nat / (slack_s * s)
    return bandwidth_hz, s, (log_inverse_v > 0.0) & (s > 0.0) & np.isfinite(bandwidth_hz)
