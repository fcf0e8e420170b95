"""Laws of fading as over-the-air schemes need them: what inverting a channel costs.

A fading gain f multiplies the power gain of the path and has mean one (`wireless/channel.py` draws it):

    none        f = 1
    rayleigh    f is exponential
    rician      f = |sqrt(K/(K+1)) + sqrt(1/(K+1)) z|^2 with z unit complex normal; K = 0 is Rayleigh
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

LAWS = ("none", "rayleigh", "rician")


@final
@dataclass(frozen=True)
class Fading:
    """A law of fading; `k_factor` is Rician fading's K, a plain ratio, which no other law reads."""

    law: str = "none"
    k_factor: float = 0.0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise ValueError(f"there is no law of fading {self.law!r:.80}; laws: {', '.join(LAWS)}")
        if not 0.0 <= self.k_factor < math.inf:
            raise ValueError(f"k_factor is {self.k_factor:g}; it must be at least 0 and finite")

    def mean_inverse(self, threshold: float) -> float:
        """E[1/f, where f >= threshold, else 0]: power that inverting takes, over that of a channel without fading.

        Rayleigh: the integral of e^-x / x from the threshold on, the exponential integral E_1. It grows without bound
        as the threshold goes to zero, except without fading: nobody can afford to invert every channel.
        """
        if self.law == "none":
            return float(threshold <= 1.0)
        if threshold <= 0.0:
            return math.inf
        from scipy import integrate, special  # here, because they take their time to import

        if self.law == "rayleigh":
            return float(special.exp1(threshold))
        k = self.k_factor

        def density_over_log(log_f: float) -> float:  # dx / x = d log x; the Bessel function comes scaled by e^-x
            f = math.exp(log_f)
            apart = math.sqrt(k) - math.sqrt((k + 1.0) * f)
            return (k + 1.0) * math.exp(-(apart**2)) * float(special.ive(0, 2.0 * math.sqrt(k * (k + 1.0) * f)))

        start, end = math.log(threshold), max(math.log(threshold), 0.0) + 8.0
        return float(integrate.quad(density_over_log, start, end, points=[0.0] if start < 0.0 else None, limit=200)[0])
