"""The noise of the receiver: standard normal numbers by place, the same on a CPU and on a GPU.

A key belongs to (seed, round, vector), so that a run hears the same noise alone and in company. Number j comes from two
16-bit places of a SplitMix64 output (`flare.uplink.draws`), each of which looks up a table: their sum is the number.

    T_k = E[Z | Z in the k-th of 2^16 equally likely strata] / s,    x = (T_a + T_b) / sqrt(2)

with s such that the table has variance one. Adding and looking up are exact or correctly rounded everywhere, which
logarithm and cosine are not: that is why this is no Box-Muller. x has mean 0 and variance 1 (rounding of float32
apart), its fourth moment is 3 less 8.4e-5, and no value is beyond 6.21, where a normal number is once in 1.9e9.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from flare.rng import stream
from flare.uplink.draws import draw_words

_STRATA = 1 << 16


def air_key(seed: int, index: int, *, part: int = 0) -> int:
    """The key of the noise in round `index`; `part` tells apart the vectors that are sent one after the other."""
    return int(stream(seed, "air", index, part).integers(2**64, dtype=np.uint64).view(np.int64))


def normal(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """Standard normal numbers begin, begin + 1, ... of each key, float32 (keys, count), where the keys are.

    `begin` is even: two numbers come from one output.
    """
    if begin % 2:
        raise ValueError(f"begin is {begin}; it must be even, as two numbers come from one output")
    words = draw_words(keys, (count + 1) // 2, begin // 2)
    places = words.view(torch.int16).to(torch.int32).bitwise_and_(_STRATA - 1)[:, : 2 * count]
    drawn = _table(keys.device).index_select(0, places.reshape(-1)).view(len(keys), count, 2)
    return drawn[:, :, 0] + drawn[:, :, 1]


@lru_cache(maxsize=8)
def _table(device: torch.device) -> Tensor:
    """T / sqrt(2), float32 (2^16,)."""
    from scipy.special import ndtri  # here, because it takes its time to import

    edges = ndtri(np.linspace(0.0, 1.0, _STRATA + 1))
    density = np.exp(-0.5 * edges**2) / np.sqrt(2.0 * np.pi)  # the mean of a stratum is a difference of densities
    table = _STRATA * (density[:-1] - density[1:])
    table = 0.5 * (table - table[::-1])  # to the last bit as often above as below zero
    return torch.from_numpy((table / np.sqrt(2.0 * np.mean(table**2))).astype(np.float32)).to(device)
