"""Who is to send over the air: P2 without its band, and with the noise of the sum.

Senders do not divide the band, so that any set of devices that can send will do; but the weakest channel of a set
decides the noise of all. With equal shares and updates of mean square v the error of the mean is n v / (M^2 min q_i)
(`scheme.py` with the amplitude of `mse` or `cotaf`), and n v = |Delta|^2. A codec with E|Q(x) - x|^2 <= w_i |x|^2 would
bring sum w_i |Delta|^2 / M^2. So the noise enters the paper's Lemma 1 as that of codecs does, and the round costs

    J(Q) = (1/M + gamma/M^2) sum_{i in Q} cost_i + (gamma/M^2) noise / min_{i in Q} q_i,        M = |Q|,

cost_i = 1/tau_i, and `noise` is what a codec with w = 1 would add for one device: E|Delta|^2 over the variance of
gradients. That it is known, and the same for all devices, is a model.

**Optimum.** Let Q be optimal, t = min q_i over Q and M = |Q|. Among the devices with q_i >= t take the M of least cost:
their sum of costs is at most Q's, and their weakest channel at least t, so J is not greater. So an optimum is found
among K^2 sets: for each device's q as t, the cheapest M of those at least as good, for each M. Where all costs are the
same the cheapest M may be taken to be the M best channels: the sets are the K prefixes of the devices by q, descending.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from flare.types import Floats, Indices
from flare.uplink.air.link import positive
from flare.uplink.air.scheme import Mask


@final
@dataclass(frozen=True, eq=False)
class AirChoice:
    """The best set of senders, ascending, and its cost; empty and infinite where nobody can send."""

    selected: Indices
    objective: float


def air_objective(selected: ArrayLike, snr: Floats, cost: Floats, *, gamma: float, noise: float) -> float:
    """J of a set of devices; infinite for the empty set."""
    at = np.asarray(selected, dtype=np.intp)
    if len(at) == 0:
        return math.inf
    return float(_objective(len(at), math.fsum(cost[at]), noise / float(np.min(snr[at])), gamma))


def best_senders(
    snr: ArrayLike,
    cost: ArrayLike,
    *,
    gamma: float,
    noise: float,
    allowed: Mask | None = None,
    max_devices: int | None = None,
) -> AirChoice:
    """The set that minimises J among the `allowed` devices (by default all), of at most `max_devices`; proven.

    `snr` is q_i and `cost` is cost_i, both > 0. Of sets that cost the same, the larger. Takes K^2 log K steps.
    """
    quality = positive("snr", snr)
    price = positive("cost", cost, len(quality))
    if not (0.0 <= gamma < math.inf and 0.0 <= noise < math.inf):
        raise ValueError(f"gamma is {gamma:g} and noise is {noise:g}; both must be at least 0 and finite")
    if max_devices is not None and max_devices < 1:
        raise ValueError(f"max_devices is {max_devices}; it must be at least 1")
    there = np.arange(len(quality)) if allowed is None else np.flatnonzero(allowed)
    by_price = there[np.lexsort((there, -quality[there], price[there]))]
    best, best_set = math.inf, by_price[:0]
    for weakest in np.unique(quality[there])[::-1]:
        among = by_price[quality[by_price] >= weakest][:max_devices]
        count = np.arange(1, len(among) + 1)
        spread = noise / np.minimum.accumulate(quality[among])
        costs = _objective(count, np.cumsum(price[among]), spread, gamma)
        at = len(costs) - 1 - int(np.argmin(costs[::-1]))
        if costs[at] <= best:
            best, best_set = float(costs[at]), among[: at + 1]
    selected = np.sort(best_set)
    return AirChoice(selected, air_objective(selected, quality, price, gamma=gamma, noise=noise))


def _objective(count: Any, cost: Any, spread: Any, gamma: float) -> Any:
    """J of sets of `count` devices, whose costs sum to `cost`; `spread` is noise / min q_i. Numbers or arrays."""
    return (1.0 / count + gamma / count**2) * cost + gamma / count**2 * spread
