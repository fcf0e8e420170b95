"""Random draws of codecs: a key for each update, and as many draws from it as the update has weights.

A key is drawn from the stream of (seed, round, device, part), and nothing else enters. From it, draws are computed by
place: number j is SplitMix64 (Steele, Lea and Flood, 2014) at key + (j + 1) 0x9e3779b97f4a7c15, cut in two. So a whole
stack is drawn at once on the device that it is on, and the numbers are the same on a CPU and on a GPU, alone and in
company.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flare.rng import streams

DRAWS = 1 << 24
"""Draws are whole numbers below this one."""
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_NUMPY_ROUNDS = [(np.uint64(shift), np.uint64(factor)) for shift, factor in _ROUNDS]  # made once, not in every call
_NUMPY_LAST_SHIFT = np.uint64(_LAST_SHIFT)
_BOTH_DRAWS = np.uint64((DRAWS - 1) << 32 | (DRAWS - 1))
_ROW = 1 << 12
_MAX_KEPT = 1 << 18  # words; memory that is never written to is never taken
_kept = threading.local()

_Words = npt.NDArray[np.uint64]


def keys(seed: int, index: int, devices: Iterable[int], *, part: int = 0, device: str | torch.device = "cpu") -> Tensor:
    """One key for each of the devices in round `index`; `part` tells apart the vectors that a device sends at once."""
    own = streams(seed, "uplink", index, numbers=list(devices), then=(part,))
    drawn = [each.integers(2**64, dtype=np.uint64) for each in own]
    return torch.from_numpy(np.array(drawn, dtype=np.uint64).view(np.int64)).to(device)


def draw_words(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """Outputs begin, begin + 1, ... of SplitMix64 that starts at each key: int64 (devices, count), as if unsigned."""
    if keys.device.type != "cpu":
        return words_of_torch(keys, count, begin)
    words = np.empty((len(keys), count), dtype=np.uint64)
    _fill(words, np.empty_like(words), _states(keys), begin)
    return torch.from_numpy(words.view(np.int64))


def draw(keys: Tensor, count: int) -> Tensor:
    """Whole numbers below DRAWS, uniform and fixed by the keys: int64 (devices, count); for codecs of users' own."""
    return draw_words(keys, count).bitwise_and_(DRAWS - 1)


def words_of_torch(keys: Tensor, count: int, begin: int = 0) -> Tensor:
    """`draw_words` on any device, a CPU too."""
    words = torch.arange(begin + 1, begin + count + 1, device=keys.device).mul_(_signed(_STEP)) + keys.unsqueeze(1)
    shifted = torch.empty_like(words)
    for shift, factor in _ROUNDS:
        words.bitwise_xor_(_shift(words, shift, shifted)).mul_(_signed(factor))
    return words.bitwise_xor_(_shift(words, _LAST_SHIFT, shifted))


@final
class Draws:
    """Draws for stretches of weights, one stretch after the other, on a CPU in the same memory: that of the thread."""

    def __init__(self, keys: Tensor, longest: int) -> None:
        """One row of draws for each key, of stretches up to so many weights."""
        self._keys = keys
        if keys.device.type == "cpu":
            self._states = _states(keys)
            self._memory = _memory((2, len(keys), (longest + 1) // 2))
            self._cut(longest)

    def of(self, begin: int, count: int) -> tuple[Tensor, Tensor]:
        """Those for the weights begin, begin + 1, ...: whole numbers below DRAWS, uniform, as float32 (devices, count).

        And as much memory for the caller to write to; both are good until the thread's next call, of any Draws.
        `begin` is even: two draws come from one output.
        """
        if self._keys.device.type != "cpu":
            both = words_of_torch(self._keys, (count + 1) // 2, begin // 2).view(torch.int32)[:, :count]
            return both.bitwise_and_(DRAWS - 1).float(), torch.empty(both.shape, device=both.device)
        if count != self._count:
            self._cut(count)
        _fill(self._words, self._shifted, self._states, begin // 2)
        np.bitwise_and(self._words, _BOTH_DRAWS, out=self._words)
        return self._numbers.copy_(self._both), self._spare

    def _cut(self, count: int) -> None:
        """Have as much of the memory at hand as so many draws take: cutting it anew for each stretch takes long."""
        self._count = count
        self._words, self._shifted = self._memory[:, :, : (count + 1) // 2]
        self._both = torch.from_numpy(self._words.view(np.int32)[:, :count])
        self._spare = self._both.view(torch.float32)
        self._numbers = torch.from_numpy(self._shifted.view(np.float32)[:, :count])


def _memory(shape: tuple[int, int, int]) -> _Words:
    """Words to write to, kept for the thread if they are few: to touch fresh ones first takes longer than the work."""
    size = math.prod(shape)
    if size > _MAX_KEPT:
        return np.empty(shape, dtype=np.uint64)
    if not hasattr(_kept, "words"):
        _kept.words = np.empty(_MAX_KEPT, dtype=np.uint64)
    words: _Words = _kept.words[:size]
    return words.reshape(shape)


def _states(keys: Tensor) -> _Words:
    """Where the generator of each key starts, (devices, 1)."""
    return keys.numpy().view(np.uint64)[:, None]


def _fill(words: _Words, shifted: _Words, states: _Words, begin: int) -> None:
    """Write outputs begin, begin + 1, ... into words (devices, count), by way of as much memory.

    That is `words_of_torch` in half the time: numpy shifts unsigned numbers as they are, and multiplies sooner.
    """
    devices, count = words.shape
    rows = count // _ROW
    ordinals = np.arange(begin, begin + count + 1, _ROW, dtype=np.uint64)  # of what precedes each row, and the rest
    starts = states + ordinals * np.uint64(_STEP)
    whole, rest = words[:, : rows * _ROW], words[:, rows * _ROW :]
    np.add(_multiples(), starts[:, :rows, None], out=whole.reshape(devices, rows, _ROW))
    np.add(_multiples()[: rest.shape[1]], starts[:, rows:], out=rest)
    for shift, factor in _NUMPY_ROUNDS:
        np.bitwise_xor(words, np.right_shift(words, shift, out=shifted), out=words)
        np.multiply(words, factor, out=words)
    np.bitwise_xor(words, np.right_shift(words, _NUMPY_LAST_SHIFT, out=shifted), out=words)


@lru_cache(maxsize=1)
def _multiples() -> _Words:
    """1, 2, ... times the step of SplitMix64, modulo 2^64: for one row, so that they stay in the nearest cache."""
    return np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(_STEP)


def _signed(number: int) -> int:
    """The signed number of 64 bits with the bits of an unsigned one: torch multiplies these."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _shift(words: Tensor, shift: int, out: Tensor) -> Tensor:
    """Words shifted to the right as unsigned numbers, into `out`: what the sign puts in from the left is cut off."""
    return torch.bitwise_right_shift(words, shift, out=out).bitwise_and_((1 << (64 - shift)) - 1)
