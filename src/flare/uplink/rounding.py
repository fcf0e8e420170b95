"""Rounding to levels at random, so that the mean is what was to be rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from flare.uplink import blocks as of_blocks
from flare.uplink.codec import refuse_lost, refuse_not_finite
from flare.uplink.draws import DRAWS, Draws


def in_levels(updates: Tensor, scales: Tensor, block: int, levels: int) -> Tensor:
    """Entries (devices, weights) in units of a level, from -s to s: s x / scale, 0 in a block of zeros."""
    return _times(_shares(updates, scales, block), levels)


def round_at_random(exact: Tensor, draws: Tensor, spare: Tensor | None = None) -> Tensor:
    """One of the two whole numbers beside each entry; the upper one with the probability of the fraction.

    `draws` are uniform among 0, ..., DRAWS - 1, float32 of the same shape. The probability is the fraction, rounded up
    to a multiple of 1 / DRAWS. All arguments are written over, the entries with the answer, which is never -0.
    """
    below = torch.floor(exact, out=spare)
    fraction = exact.sub_(below).mul_(_number(DRAWS, exact.device))
    return torch.add(
        below, draws.lt_(fraction), out=exact
    )  # in float32 throughout: mixed types take three times longer


def quantise(updates: Tensor, keys: Tensor, block: int, levels: int) -> tuple[Tensor, Tensor]:
    """Scales (devices, blocks, 1), and l + s for each entry (devices, weights): uint8, or int32 where it must be."""
    scales = of_blocks.largest(updates, block)
    codes = torch.empty(updates.shape, dtype=torch.uint8 if levels < 128 else torch.int32, device=updates.device)
    for span, level in _rounded(_shares(updates, scales, block), keys, levels):
        codes[:, span] = level.add_(_number(levels, level.device))
    return scales, codes


def arrive(updates: Tensor, keys: Tensor, block: int, levels: int) -> Tensor:
    """`restore` of what `quantise` gives, without the numbers between; NotFiniteError where an update is not finite."""
    block = of_blocks.largest_block(updates.shape[1], block)
    if updates.is_cuda and block <= of_blocks.MAX_KERNEL_BLOCK:
        from flare.uplink import kernels  # here: Triton is there where GPUs are

        received, lost = kernels.rounded(updates.contiguous(), keys, block, levels)
        refuse_lost(lost)
        return received
    scales = of_blocks.largest(updates, block)
    refuse_not_finite(scales[:, :, 0])
    received = _shares(updates, scales, block)
    for _, level in _rounded(received, keys, levels):
        _over(level, levels)
    return of_blocks.times_scales(received, scales, block)


def restore(codes: Tensor, scales: Tensor, block: int, levels: int) -> Tensor:
    """The entries (devices, weights) that l + s stand for; l = s is the scale itself."""
    return of_blocks.times_scales(_over(codes.float().sub_(_number(levels, codes.device)), levels), scales, block)


def _rounded(shares: Tensor, keys: Tensor, levels: int) -> Iterator[tuple[slice, Tensor]]:
    """Levels, rounded at random, written over shares of the scale (devices, weights), stretch by stretch."""
    spans = of_blocks.spans(shares.shape[1], shares.device)
    draws = Draws(keys, spans[0].stop)
    for span in spans:
        entries = shares[:, span]
        yield span, round_at_random(_times(entries, levels), *draws.of(span.start, entries.shape[1]))


def _shares(updates: Tensor, scales: Tensor, block: int) -> Tensor:
    """Entries (devices, weights) as shares of the scales of their blocks, 0 in a block of zeros."""
    return of_blocks.by_block(torch.div, updates, torch.where(scales > 0.0, scales, _number(1, scales.device)), block)


def _times(shares: Tensor, levels: int) -> Tensor:
    return shares if levels == 1 else shares.mul_(_number(levels, shares.device))


def _over(level: Tensor, levels: int) -> Tensor:
    return level if levels == 1 else level.div_(_number(levels, level.device))


@lru_cache(maxsize=64)
def _number(value: int, device: torch.device) -> Tensor:
    """A whole number as a tensor. Dividing by a plain one is inexact on GPUs, multiplying by it slow on CPUs."""
    return torch.tensor(float(value), device=device)


def variance_bound(entries: int, levels: int) -> float:
    """The largest E|Q(x) - x|^2 / |x|^2 of a block, (sqrt(1 + (d - 1) / s^2) - 1) / 2, for d entries and s levels.

    With y_i = s |x_i| / scale and f_i its fraction, the ratio is sum f_i (1 - f_i) / sum y_i^2. One y is s, which adds
    nothing above; of the others f (1 - f) is largest against y^2 for y below 1, all of them equal to y. The greatest
    (d - 1) (y - y^2) / (s^2 + (d - 1) y^2) is at 1 / y = 1 + sqrt(1 + (d - 1) / s^2), and is 1 / (2 y) - 1.
    """
    ratio = (entries - 1) / levels**2
    return 0.5 * ratio / (math.sqrt(1.0 + ratio) + 1.0)  # the same without cancellation


def expected_error(updates: Tensor, block: int, levels: int) -> Tensor:
    """E|Q(x) - x|^2 / |x|^2 of each of the updates (devices, weights), float64; 0 for an update of zeros."""
    scales = of_blocks.largest(updates, block)
    exact = of_blocks.split(in_levels(updates, scales, block, levels), block).double()
    fractions = exact - exact.floor()
    lost = (fractions * (1.0 - fractions) * (scales.double() / levels).square()).sum((1, 2))
    sizes = of_blocks.split(updates, block).double().square().sum((1, 2))
    return torch.where(sizes > 0.0, lost / sizes, 0.0)
