"""What a choice of bits costs: the size of a message, and the noise w = E|Q(x) - x|^2 / |x|^2 of its codec.

These are the numbers from which `flare.scheduling.bits_choice` chooses for every device. Of w there are three. The
`variance` of a codec is proven for every update, and far above what happens. `measured_noise` is that of given updates,
such as a device's last one: it reports one number for each choice. `normal_noise` is what to expect of normal entries,
for a device of which nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from torch import Tensor

from flare.types import Floats
from flare.uplink.quantisers import Qsgd
from flare.uplink.rounding import variance_bound

_LARGEST = np.linspace(-4.0, 36.0, 161)  # z of values of the largest entry of a block, its quantiles at exp(-exp(-z))
_NODES = 64  # where the entries between 0 and the largest are looked at, at least; some for each level
_MANY_LEVELS = 127  # above, a fraction is as good as uniform


def payload_bits(codecs: Sequence[Qsgd], num_weights: int) -> Floats:
    """The size of a message of each codec, in bits, shape (choices,)."""
    return np.array([codec.bits(num_weights) for codec in codecs], dtype=np.float64)


def measured_noise(codecs: Sequence[Qsgd], updates: Tensor) -> Floats:
    """w of each codec on given updates (devices, weights), exactly, not by drawing; shape (choices, devices)."""
    rows: Floats = np.array([codec.expected_error(updates).cpu().numpy() for codec in codecs], dtype=np.float64)
    return rows


def normal_noise(codecs: Sequence[Qsgd], num_weights: int) -> Floats:
    """w of each codec where entries are independent and normal: expected noise over expected size, shape (choices,)."""
    return np.array([_of_normal(min(codec.block, num_weights), codec.levels) for codec in codecs])


@cache
def _of_normal(entries: int, levels: int) -> float:
    """w of a block of d entries and s levels a side.

    The largest of the |x_j|, m, has the distribution function erf(m / sqrt 2)^d and is kept. Given m the others are
    normal within -m .. m, and each loses (m/s)^2 f (1 - f), f the fraction of s |x| / m.
    """
    if entries == 1:
        return 0.0
    from scipy.special import erfcinv  # here, because it takes its time to import

    chance = np.exp(-_LARGEST - np.exp(-_LARGEST))  # how likely each is, in equal steps of z
    largest = math.sqrt(2.0) * erfcinv(-np.expm1(-np.exp(-_LARGEST) / entries))
    lost = (largest / levels) ** 2 * _mean_lost(largest, levels)
    expected = float(np.sum(chance * lost) / np.sum(chance)) * (entries - 1) / entries
    return min(expected, variance_bound(entries, levels))


def _mean_lost(largest: Floats, levels: int) -> Floats:
    """E f (1 - f), for each value of the largest entry."""
    if levels > _MANY_LEVELS:
        return np.full(len(largest), 1.0 / 6.0)
    from scipy.special import erf

    node, share = np.polynomial.legendre.leggauss(max(6, _NODES // levels))
    fraction = 0.5 * (node + 1.0)
    in_levels = np.arange(levels)[:, None] + fraction  # (levels, nodes)
    x = largest[:, None, None] * in_levels / levels
    step = largest / levels / erf(largest / math.sqrt(2.0))  # the width of a level, over the chance to be within
    density = math.sqrt(2.0 / math.pi) * np.exp(-0.5 * x**2) * step[:, None, None]
    mean: Floats = np.sum(0.5 * share * density * fraction * (1.0 - fraction), axis=(1, 2))
    return mean
