"""Random draws of codecs: a key for each update, and as many draws from it as the update has weights.

A key is drawn from the stream of (seed, round, device, part), and nothing else enters. From it, draws are computed by
place: number j is SplitMix64 (Steele, Lea and Flood, 2014) at key + (j + 1) 0x9e3779b97f4a7c15, cut in two. So a whole
stack is drawn at once on the device that it is on, and the numbers are the same on a CPU and on a GPU, alone and in
company.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from flare.rng import stream

DRAWS = 1 << 24
"""Draws are whole numbers below this one."""
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
_LAST_SHIFT = 31


def keys(seed: int, index: int, devices: Iterable[int], *, part: int = 0, device: str | torch.device = "cpu") -> Tensor:
    """One key for each of the devices in round `index`; `part` tells apart the vectors that a device sends at once."""
    drawn = [stream(seed, "uplink", index, each, part).integers(2**64, dtype=np.uint64) for each in devices]
    return torch.from_numpy(np.array(drawn, dtype=np.uint64).view(np.int64)).to(device)


def draw_words(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """Outputs begin, begin + 1, ... of SplitMix64 that starts at each key: int64 (devices, count), as if unsigned."""
    places = torch.arange(begin + 1, begin + count + 1, device=keys.device).mul_(_STEP).unsqueeze(0)
    start = keys.unsqueeze(1)
    words = places.add_(start) if len(keys) == 1 else places + start
    shifted = torch.empty_like(words)  # one for all three: fresh memory costs as much as the arithmetic
    for shift, factor in _ROUNDS:
        words.bitwise_xor_(_shift(words, shift, shifted)).mul_(factor)
    return words.bitwise_xor_(_shift(words, _LAST_SHIFT, shifted))


def draw(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """Draws for the weights begin, begin + 1, ... of each device: int32 (devices, count), uniform below DRAWS.

    `begin` is even: two draws come from one output.
    """
    words = draw_words(keys, (count + 1) // 2, begin // 2)
    return words.view(torch.int32)[:, :count].bitwise_and_(DRAWS - 1)


def _shift(words: Tensor, shift: int, out: Tensor) -> Tensor:
    """Words shifted to the right as unsigned numbers, into `out`."""
    return torch.bitwise_right_shift(words, shift, out=out).bitwise_and_((1 << (64 - shift)) - 1)
