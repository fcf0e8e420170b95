"""Which of its samples a device learns from, step by step."""

from __future__ import annotations

import numpy as np

from flare.types import Indices

MAX_SAMPLES = 100_000_000
"""Samples that a device may go through in a round: they are drawn at once."""


def draw_batches(held: Indices, steps: int, batch_size: int, *, rng: np.random.Generator) -> Indices:
    """Mini-batches of a device's samples, shape (steps, batch size): it goes through them in a random order, and
    through a new one when all have been used."""
    needed = steps * batch_size
    if needed > MAX_SAMPLES:
        raise ValueError(
            f"a device is to do {steps} steps of {batch_size} samples in a round, more than {MAX_SAMPLES:,} samples; "
            "lower wireless.batch_size or the local steps (wireless.tau_mean, tau_values or the trace)"
        )
    passes = -(-needed // len(held))
    order = np.concatenate([rng.permutation(len(held)) for _ in range(passes)])
    batches: Indices = held[order[:needed]].reshape(steps, batch_size)
    return batches
