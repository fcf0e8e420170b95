"""Random draws of codecs: a key for each update, and as many draws from it as the update has weights.

A key is drawn from the stream of (seed, round, device, part), and nothing else enters. From it, draws are computed by
place: number j is SplitMix64 (Steele, Lea and Flood, 2014) at key + (j + 1) 0x9e3779b97f4a7c15, cut in two. So a whole
stack is drawn at once on the device that it is on, and the numbers are the same on a CPU and on a GPU, alone and in
company.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flare.rng import stream

DRAWS = 1 << 24
"""Draws are whole numbers below this one."""
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_BOTH_DRAWS = (DRAWS - 1) << 32 | (DRAWS - 1)
_KEPT = 1 << 15

_Words = npt.NDArray[np.uint64]


def keys(seed: int, index: int, devices: Iterable[int], *, part: int = 0, device: str | torch.device = "cpu") -> Tensor:
    """One key for each of the devices in round `index`; `part` tells apart the vectors that a device sends at once."""
    drawn = [stream(seed, "uplink", index, each, part).integers(2**64, dtype=np.uint64) for each in devices]
    return torch.from_numpy(np.array(drawn, dtype=np.uint64).view(np.int64)).to(device)


def draw_words(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """Outputs begin, begin + 1, ... of SplitMix64 that starts at each key: int64 (devices, count), as if unsigned."""
    if keys.device.type != "cpu":
        return words_of_torch(keys, count, begin)
    words = np.empty((len(keys), count), dtype=np.uint64)
    _fill(words, np.empty_like(words), keys, begin)
    return torch.from_numpy(words.view(np.int64))


def words_of_torch(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """`draw_words` on any device, a CPU too."""
    words = torch.arange(begin + 1, begin + count + 1, device=keys.device).mul_(_signed(_STEP)) + keys.unsqueeze(1)
    shifted = torch.empty_like(words)
    for shift, factor in _ROUNDS:
        words.bitwise_xor_(_shift(words, shift, shifted)).mul_(_signed(factor))
    return words.bitwise_xor_(_shift(words, _LAST_SHIFT, shifted))


@final
class Draws:
    """Draws for stretches of weights, one stretch after the other, on a CPU in the same memory."""

    def __init__(self, keys: Tensor, longest: int) -> None:
        """One row of draws for each key, of stretches up to so many weights."""
        self._keys = keys
        if keys.device.type == "cpu":
            self._words, self._shifted = np.empty((2, len(keys), (longest + 1) // 2), dtype=np.uint64)
            self._both = torch.from_numpy(self._words.view(np.int32))
            self._numbers = torch.from_numpy(self._shifted.view(np.float32))
            self._spare = self._both.view(torch.float32)

    def of(self, begin: int, count: int) -> tuple[Tensor, Tensor]:
        """Those for the weights begin, begin + 1, ...: whole numbers below DRAWS, uniform, as float32 (devices, count).

        And as much memory for the caller to write to; both are good until the next call. `begin` is even: two draws
        come from one output.
        """
        num_words, begin_word = (count + 1) // 2, begin // 2
        if self._keys.device.type != "cpu":
            both = words_of_torch(self._keys, num_words, begin_word).view(torch.int32)[:, :count]
            return both.bitwise_and_(DRAWS - 1).float(), torch.empty(both.shape, device=both.device)
        words = self._words[:, :num_words]
        _fill(words, self._shifted[:, :num_words], self._keys, begin_word)
        np.bitwise_and(words, np.uint64(_BOTH_DRAWS), out=words)
        both, numbers, spare = (each[:, :count] for each in (self._both, self._numbers, self._spare))
        return numbers.copy_(both), spare


def _fill(words: _Words, shifted: _Words, keys: Tensor, begin: int) -> None:
    """Write outputs begin, begin + 1, ... into words (devices, count), by way of as much memory.

    That is `words_of_torch` in half the time: numpy shifts unsigned numbers as they are, and multiplies sooner.
    """
    start = keys.numpy().view(np.uint64) + np.uint64(begin * _STEP % (1 << 64))
    np.add(_multiples(words.shape[1]), start[:, None], out=words)
    for shift, factor in _ROUNDS:
        np.bitwise_xor(words, np.right_shift(words, np.uint64(shift), out=shifted), out=words)
        np.multiply(words, np.uint64(factor), out=words)
    np.bitwise_xor(words, np.right_shift(words, np.uint64(_LAST_SHIFT), out=shifted), out=words)


def _multiples(count: int) -> _Words:
    """1, 2, ..., count times the step of SplitMix64, modulo 2^64; those that are asked for again and again are kept."""
    return _first_multiples()[:count] if count <= _KEPT else _made_multiples(count)


@lru_cache(maxsize=1)
def _first_multiples() -> _Words:
    return _made_multiples(_KEPT)


def _made_multiples(count: int) -> _Words:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)


def _signed(number: int) -> int:
    """The signed number of 64 bits with the bits of an unsigned one: torch multiplies these."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _shift(words: Tensor, shift: int, out: Tensor) -> Tensor:
    """Words shifted to the right as unsigned numbers, into `out`: what the sign puts in from the left is cut off."""
    return torch.bitwise_right_shift(words, shift, out=out).bitwise_and_((1 << (64 - shift)) - 1)
