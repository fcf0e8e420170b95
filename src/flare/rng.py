"""The only source of randomness: every draw comes from a stream named by a seed and a path.

    stream(seed, "fading", round)

Two different paths give independent streams; the same path gives the same numbers, whatever else was drawn before,
in whatever order and in whatever company. There is no global state.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_Words = NDArray[Any]


def stream(seed: int, *path: str | int) -> Generator:
    """The random generator that belongs to `path` under `seed`.

    A path is made of words and non-negative integers. Words become their CRC-32, so that a word always takes one
    32-bit place in numpy's spawn key and two paths can be told apart by their places.
    """
    return Generator(PCG64(_sequence(seed, path)))


def streams(seed: int, *path: str | int, numbers: Sequence[int], then: tuple[str | int, ...] = ()) -> list[Generator]:
    """`stream(seed, *path, number, *then)` for each of some numbers, in a third of the time. Numbers, and those in
    `then`, are at least 0 and below 2^32; ValueError otherwise.

    numpy's `SeedSequence` mixes the words of seed and path into four, one word after the other, and draws the state of
    a generator from these. Here the words before the numbers are mixed once, and the others for all streams together.
    """
    if not path:
        raise ValueError("streams need a path before their numbers, such as the word that says what they are for")
    before = _sequence(seed, path)
    num_words = max(_num_words(operator.index(seed)), _POOL) + sum(map(_num_words, before.spawn_key))
    pool: _Words = before.pool[:, None]  # (4, streams)
    for words in (list(map(_as_number, numbers)), *([_as_number(part)] for part in then)):
        if words and not 0 <= min(words) <= max(words) < 1 << 32:
            raise ValueError(f"numbers of streams are from 0 to 2^32 - 1, got {min(words)} to {max(words)}")
        constants = _constants(_FIRST_A * pow(_TIMES_A, _POOL * num_words, 1 << 32), _TIMES_A, _POOL)
        pool = _folded(_LEFT * pool - _RIGHT * _mixed(np.array(words, dtype=np.uint32), constants))
        num_words += 1
    state = _mixed(np.concatenate((pool, pool)), _OF_STATE)  # (8, streams)
    return [Generator(PCG64(cast(Any, _Seeded(words)))) for words in np.ascontiguousarray(state.T, "<u4").view("<u8")]


class _Seeded(ISeedSequence):
    """The state of a generator, where numpy asks for what makes one."""

    def __init__(self, words: _Words) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> _Words:
        """The state, whatever is asked for: a generator asks for 4 words of 64 bits."""
        return self._words


def _constants(first: int, times: int, number: int) -> _Words:
    """The constants with which so many words are mixed, shape (number + 1, 1)."""
    made = [first % (1 << 32)]
    for _ in range(number):
        made.append(made[-1] * times % (1 << 32))
    return np.array(made, dtype=np.uint32)[:, None]


def _mixed(words: _Words, constants: _Words) -> _Words:
    """Words mixed with one constant after the other, a row for each."""
    return _folded((words ^ constants[:-1]) * constants[1:])


def _folded(words: _Words) -> _Words:
    folded: _Words = words ^ (words >> np.uint32(16))
    return folded


_POOL = 4  # words
_FIRST_A, _TIMES_A, _FIRST_B, _TIMES_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_LEFT: Any = np.uint32(0xCA01F9DD)
_RIGHT: Any = np.uint32(0x4973F715)
_OF_STATE = _constants(_FIRST_B, _TIMES_B, 2 * _POOL)


def _num_words(number: int) -> int:
    """How many words of 32 bits a number takes."""
    return max(1, -(-number.bit_length() // 32))


def _sequence(seed: int, path: tuple[str | int, ...]) -> SeedSequence:
    seed = operator.index(seed)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return SeedSequence(seed, spawn_key=tuple(map(_as_number, path)))


def _as_number(part: str | int) -> int:
    return zlib.crc32(part.encode()) if isinstance(part, str) else operator.index(part)


@contextmanager
def torch_stream(seed: int, *path: str | int) -> Iterator[None]:
    """Inside the block, what torch draws on the CPU is the stream of `path`; afterwards its generator is as before."""
    import torch  # here, so that this module needs numpy alone

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream(seed, *path).integers(2**63)))
        yield
