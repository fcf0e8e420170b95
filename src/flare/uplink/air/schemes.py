"""The three schemes: truncated channel inversion (Zhu), the one-antenna MSE rule (Yang), COTAF's precoding (Sery).

All are `scheme.py`'s signal with an offset m and an amplitude A of their own. Papers are cited by symbols and not by
the numbers of their equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from flare.config.setting import check, setting
from flare.types import Floats
from flare.uplink.air.link import AirLink, Moments
from flare.uplink.air.scheme import AirScheme, Mask, Precoding, air_scheme


@air_scheme("truncated-inversion")
@final
@dataclass(frozen=True)
class TruncatedInversion(AirScheme):
    """Broadband analog aggregation: channels inverted where fading leaves enough of them (Zhu, Wang and Huang, 2020).

        x = sqrt(rho_0) / (r^(-alpha/2) h) s  if |h|^2 >= g_th,  else silent          s of mean 0 and variance 1
        rho_0 = P_0 r^(-alpha) / (M E_1(g_th)), of the weakest path

    Paper -> code: g_th -> threshold, |h|^2 -> f = link.fading_gain, P_0 r^-alpha / noise -> link.mean_snr, E_1(g_th) ->
    link.fading.mean_inverse(threshold), s -> (x - m) / nu. Then A^2 = rho / nu^2 with

        rho = min_i (mean_snr_i / c_i^2) / mean_inverse,   m = mean_i mean(x_i),   nu^2 = mean_i mean((x_i - m)^2).

    The amplitude goes by the laws of the channels and not by what they are now: limit = "average" holds the power in
    the mean over the fading, as in the paper, and that of a device whose update is as large as the others'. A device
    in a fade, or with a larger update, sends with more than its limit in that round.

    Left open or otherwise, and decided here: M sub-channels fade alike (the cell's fading is flat), so that a device is
    silent with all of its weights or none; weights travel in I and Q; c_i may differ; the law may be Rician, or none
    (mean_inverse = 1). Of the paper's scheduling by distance nothing is here: who is asked is the policy's affair.
    limit = "always" holds the limit of every device in every round, with the worst fade and the largest update:
    1 / threshold in the place of mean_inverse, and the largest of the senders in the place of their mean in nu^2.
    """

    threshold: float = setting(0.1, "fading gain below which a device is silent", above=0.0)
    limit: str = setting(
        "average",
        "the power limit holds in the average over fading and devices, or always",
        choices=("average", "always"),
    )

    def __post_init__(self) -> None:
        check(self, "")

    def can_send(self, link: AirLink, shares: Floats) -> Mask:
        """Those whose fading gain reaches the threshold."""
        return np.asarray(link.fading_gain >= self.threshold)

    def precoding(self, link: AirLink, shares: Floats, told: Moments) -> Precoding:
        """The offset and the unit of the updates from their moments, the level from the laws of the channels."""
        offset = float(np.mean(told.mean))
        spread = told.around(offset)
        always = self.limit == "always"
        if not always:
            inverse = link.fading.mean_inverse(self.threshold)
        else:
            inverse = 1.0 if link.fading.law == "none" else 1.0 / self.threshold
        level = float(np.min(link.mean_snr / shares**2)) / inverse
        return Precoding(offset, _amplitude(level, float(np.max(spread) if always else np.mean(spread))))


@air_scheme("mse")
@final
@dataclass(frozen=True)
class LeastError(AirScheme):
    """The greatest amplitude at which every sender keeps to its power, so the least MSE (Yang, Jiang, Shi and Ding).

        wanted  sum phi_i s_i,   b_i = sqrt(eta) phi_i / h_i,   eta = P_0 min_i |h_i|^2 / phi_i^2,   MSE = sigma^2 / eta
        S = the most devices with MSE <= gamma: those with |h_i|^2 / phi_i^2 >= sigma^2 / (P_0 gamma)

    (their rule for one antenna, where the receive vector is a number). Paper -> code: s_i -> x_i / sqrt(v_i), of mean
    square one; phi_i -> c_i sqrt(v_i), so that the sum is that of the updates; P_0 |h_i|^2 / sigma^2 -> q_i; eta /
    sigma^2 -> A^2. So m = 0 and

        A^2 = min_i q_i / (c_i^2 v_i)        (one device sends at its limit, no device above it)

    and no scheme of `scheme.py`'s form with m = 0 that keeps to the limits has less error.

    Left open, and decided here: updates are scaled by their own mean square, which the paper takes to be one. Who sends
    is known before updates are: there all v_i are taken as one, and shares as multiples of their mean, so that max_mse
    is in units of one device's mean square: (c_i / mean c)^2 / q_i <= max_mse.
    """

    max_mse: float = setting(
        1.0, "greatest noise in a weight of the sum, over the mean square of a weight of an update", above=0.0
    )

    def __post_init__(self) -> None:
        check(self, "")

    def can_send(self, link: AirLink, shares: Floats) -> Mask:
        """Those with whom the error stays within `max_mse`."""
        return np.asarray((shares / np.mean(shares)) ** 2 <= self.max_mse * link.snr)

    def precoding(self, link: AirLink, shares: Floats, told: Moments) -> Precoding:
        """The amplitude at which the first sender reaches its limit."""
        spread = told.around(0.0)
        with np.errstate(divide="ignore"):
            return Precoding(0.0, math.sqrt(float(np.min(link.snr / (shares**2 * spread)))))


@air_scheme("cotaf")
@final
@dataclass(frozen=True)
class Cotaf(AirScheme):
    """COTAF: a scale that grows as updates shrink, so that the noise vanishes (Sery, Shlezinger, Cohen, Eldar, 2021).

        x_i = sqrt(p_t) (h_min / h_i) Delta_i,     p_t = P / max_i E|Delta_i|^2,     w <- w + y / (N sqrt(p_t) h_min)

    silent where |h_i| < h_min. Paper -> code: Delta_i -> c_i x_i, |Delta_i|^2 / n -> c_i^2 v_i, P h_min^2 / noise ->
    the least q_i of the senders. So m = 0 and

        A^2 = min_i q_i / max_i (c_i^2 v_i).

    It differs from `mse` where the weakest channel and the largest update are not of the same device: then its noise is
    larger, but devices need to know of each other only the two extremes.

    Left open, and decided here: h_min is the weakest sender's and not the threshold itself, which it is never below;
    the threshold is on the fading gain. E|Delta_i|^2 is that of this round, so that the limit holds for every device.
    """

    threshold: float = setting(0.0, "fading gain below which a device is silent", at_least=0.0)

    def __post_init__(self) -> None:
        check(self, "")

    def can_send(self, link: AirLink, shares: Floats) -> Mask:
        """Those whose fading gain reaches the threshold."""
        return np.asarray(link.fading_gain >= self.threshold)

    def precoding(self, link: AirLink, shares: Floats, told: Moments) -> Precoding:
        """The weakest channel over the largest update."""
        return Precoding(0.0, _amplitude(float(np.min(link.snr)), float(np.max(shares**2 * told.around(0.0)))))


def _amplitude(level: float, unit: float) -> float:
    """sqrt(level / unit); infinite where all updates are the offset, which needs no sending."""
    return math.sqrt(level / unit) if unit > 0.0 else math.inf
