"""Rounding to levels at random, so that the mean is what was to be rounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flare.uplink import blocks as of_blocks
from flare.uplink.codec import refuse_lost, refuse_not_finite
from flare.uplink.draws import DRAWS, draw


def in_levels(blocks: Tensor, scales: Tensor, levels: int) -> Tensor:
    """Entries in units of a level, from -s to s: s x / scale, 0 in a block of zeros."""
    exact = blocks / torch.where(scales > 0.0, scales, 1.0)
    return exact if levels == 1 else exact.mul_(levels)


def round_at_random(exact: Tensor, draws: Tensor) -> Tensor:
    """One of the two whole numbers beside each entry; the upper one with the probability of the fraction.

    `draws` are uniform among 0, ..., DRAWS - 1, of the same shape. The probability is the fraction, rounded up to a
    multiple of 1 / DRAWS. The entries are written over.
    """
    below = exact.floor()
    fraction = exact.sub_(below).mul_(DRAWS)
    return below.add_(draws.float().lt_(fraction))  # in float32 throughout: mixed types take three times as long


def quantise(updates: Tensor, keys: Tensor, block: int, levels: int) -> tuple[Tensor, Tensor]:
    """Scales (devices, blocks, 1), and l + s for each entry (devices, weights): uint8, or int32 where it must be."""
    codes = torch.empty(updates.shape, dtype=torch.uint8 if levels < 128 else torch.int32, device=updates.device)
    scales = []
    for begin, end in of_blocks.spans(updates.shape[1], block, updates.device):
        blocks = of_blocks.split(updates[:, begin:end], block)
        scales.append(of_blocks.largest(blocks))
        exact = of_blocks.join(in_levels(blocks, scales[-1], levels), end - begin)
        codes[:, begin:end] = round_at_random(exact, draw(keys, end - begin, begin)).add_(levels)
    return torch.cat(scales, dim=1), codes


def arrive(updates: Tensor, keys: Tensor, block: int, levels: int) -> Tensor:
    """`restore` of what `quantise` gives, without the numbers between; NotFiniteError where an update is not finite."""
    block = of_blocks.largest_block(updates.shape[1], block)
    if updates.is_cuda and block <= of_blocks.MAX_KERNEL_BLOCK:
        from flare.uplink import kernels  # here: Triton is there where GPUs are

        received, lost = kernels.rounded(updates.contiguous(), keys, block, levels)
        refuse_lost(lost)
        return received
    refuse_not_finite(updates)
    received = torch.empty_like(updates)
    for begin, end in of_blocks.spans(updates.shape[1], block, updates.device):
        blocks = of_blocks.split(updates[:, begin:end], block)
        scales = of_blocks.largest(blocks)
        exact = of_blocks.join(in_levels(blocks, scales, levels), end - begin)
        level = round_at_random(exact, draw(keys, end - begin, begin)).add_(0.0)  # no -0
        received[:, begin:end] = of_blocks.times_scales(_in_scales(level, levels), scales, block)
    return received


def restore(codes: Tensor, scales: Tensor, block: int, levels: int) -> Tensor:
    """The entries (devices, weights) that l + s stand for; l = s is the scale itself."""
    return of_blocks.times_scales(_in_scales(codes.float().sub_(levels), levels), scales, block)


def _in_scales(level: Tensor, levels: int) -> Tensor:
    """Levels as shares of the scale, written over them."""
    if levels == 1:
        return level
    return level.div_(torch.tensor(float(levels), device=level.device))  # dividing by a plain number is inexact on GPUs


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
    blocks = of_blocks.split(updates, block)
    scales = of_blocks.largest(blocks)
    exact = in_levels(blocks, scales, levels).double()
    fractions = exact - exact.floor()
    lost = (fractions * (1.0 - fractions) * (scales.double() / levels).square()).sum((1, 2))
    sizes = blocks.double().square().sum((1, 2))
    return torch.where(sizes > 0.0, lost / sizes, 0.0)
