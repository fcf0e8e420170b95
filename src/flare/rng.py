"""The only source of randomness: every draw comes from a stream named by a seed and a path.

    stream(seed, "fading", round)

Two different paths give independent streams; the same path gives the same numbers, whatever else was drawn before,
in whatever order and in whatever company. There is no global state.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """The random generator that belongs to `path` under `seed`.

    A path is made of words and non-negative integers. Words become their CRC-32, so that a word always takes one
    32-bit place in numpy's spawn key and two paths can be told apart by their places.
    """
    seed = operator.index(seed)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    key = tuple(zlib.crc32(part.encode()) if isinstance(part, str) else operator.index(part) for part in path)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


@contextmanager
def torch_stream(seed: int, *path: str | int) -> Iterator[None]:
    """Inside the block, what torch draws on the CPU is the stream of `path`; afterwards its generator is as before."""
    import torch  # here, so that this module needs numpy alone

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream(seed, *path).integers(2**63)))
        yield
