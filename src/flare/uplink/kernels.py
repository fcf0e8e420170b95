# mypy: ignore-errors
"""What arrives of updates on a GPU: for each codec a kernel that reads an update once and writes what is decoded of it.

Numbers are computed in the order of the plain versions (`rounding`, `blocks`, `plain`, `topk`) and rounded as there:
products and sums are not fused, and quotients are rounded to nearest. So a GPU gives the bits that a CPU gives.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from flare.uplink.draws import DRAWS

_TOP_BITS, _LOW_BITS = 11, 10  # the bits of a size that are looked at in the first pass, and in each of the next two
_CHUNK = 8192


@triton.jit
def _is_lost(entries):
    return (entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= 0x7F800000


@triton.jit
def _splitmix(state):
    z = (state ^ (state >> 30)) * tl.full((), 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full((), 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)


@triton.jit
def _rounded(updates, keys, out, lost, num_weights, block, levels, draws: tl.constexpr, size: tl.constexpr):
    device = tl.program_id(1).to(tl.int64)
    place = tl.arange(0, size)
    at = tl.program_id(0).to(tl.int64) * block + place
    inside = (place < block) & (at < num_weights)
    entries = tl.load(updates + device * num_weights + at, mask=inside, other=0.0)
    if tl.max(_is_lost(entries).to(tl.int32), 0) > 0:
        tl.store(lost + device, 1)
    scale = tl.max(tl.abs(entries), 0)
    exact = libdevice.div_rn(entries, tl.where(scale > 0.0, scale, 1.0) + tl.zeros_like(entries)) * levels
    below = libdevice.floor(exact)
    word = (at // 2 + 1).to(tl.uint64) * tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    word = _splitmix(word + tl.load(keys + device).to(tl.uint64, bitcast=True))
    drawn = (tl.where(at % 2 == 0, word, word >> 32) & (draws - 1)).to(tl.float32)
    level = below + tl.where(drawn < (exact - below) * draws, 1.0, 0.0)
    level = (level + levels) - levels  # no negative zero
    received = libdevice.div_rn(level, levels + tl.zeros_like(entries)) * scale
    tl.store(out + device * num_weights + at, received, mask=inside)


@triton.jit
def _signs(updates, out, lost, num_weights, count_last, size: tl.constexpr, halvings: tl.constexpr):
    device = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < num_weights
    entries = tl.load(updates + device * num_weights + at, mask=inside, other=0.0)
    if tl.max(_is_lost(entries).to(tl.int32), 0) > 0:
        tl.store(lost + device, 1)
    sums = tl.abs(entries).to(tl.float64)
    for i in tl.static_range(halvings):
        sums = tl.sum(tl.reshape(sums, (2, size >> (i + 1))), 0)
    total = tl.sum(sums, 0)
    count = tl.where(tl.program_id(0) == tl.num_programs(0) - 1, count_last, size).to(tl.float64)
    scale = libdevice.div_rn(total, count).to(tl.float32)
    tl.store(out + device * num_weights + at, tl.where(entries >= 0.0, scale, -scale), mask=inside)


@triton.jit
def _halves(updates, exponents, out, lost, num_weights, top, size: tl.constexpr):
    device = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < num_weights
    entries = tl.load(updates + device * num_weights + at, mask=inside, other=0.0)
    if tl.max(_is_lost(entries).to(tl.int32), 0) > 0:
        tl.store(lost + device, 1)
    up = top - tl.load(exponents + device)
    rounded = (entries * _power(up >> 1) * _power(up - (up >> 1))).to(tl.float16).to(tl.float32)
    down = -up
    received = rounded * _power(down >> 1) * _power(down - (down >> 1))
    largest = 3.4028234663852886e38
    tl.store(out + device * num_weights + at, tl.minimum(tl.maximum(received, -largest), largest), mask=inside)


@triton.jit
def _power(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _count(
    updates,
    prefixes,
    counts,
    lost,
    num_weights,
    above,
    shift,
    bins: tl.constexpr,
    size: tl.constexpr,
    first: tl.constexpr,
):
    device = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < num_weights
    entries = tl.load(updates + device * num_weights + at, mask=inside, other=0.0)
    sizes = entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if first:
        if tl.max(_is_lost(entries).to(tl.int32), 0) > 0:
            tl.store(lost + device, 1)
        wanted = inside
    else:
        wanted = inside & ((sizes >> above) == tl.load(prefixes + device))
    found = tl.histogram((sizes >> shift) & (bins - 1), bins, mask=wanted)
    place = tl.arange(0, bins)
    tl.atomic_add(counts + device * bins + place, found, mask=found > 0, sem="relaxed")


@triton.jit
def _pick(counts, prefixes, wanted, ties, bins: tl.constexpr, first: tl.constexpr, last: tl.constexpr):
    device = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, bins)
    found = tl.load(counts + device * bins + place)
    at_least = tl.sum(found, 0) - tl.cumsum(found, 0) + found  # how many sizes are in this bin or above
    need = tl.load(wanted + device)
    bin_ = tl.max(tl.where(at_least >= need, place, 0), 0)
    own = tl.sum(tl.where(place == bin_, found, 0), 0)
    need -= tl.sum(tl.where(place == bin_, at_least, 0), 0) - own
    prefix = bin_
    if not first:
        prefix += tl.load(prefixes + device) * bins
    tl.store(prefixes + device, prefix)
    tl.store(wanted + device, need)
    if last:
        tl.store(ties + device, (own != need).to(tl.int32))


@triton.jit
def _largest(updates, least, out, num_weights, size: tl.constexpr):
    device = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < num_weights
    entries = tl.load(updates + device * num_weights + at, mask=inside, other=0.0)
    sizes = entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    kept = sizes >= tl.load(least + device)
    tl.store(out + device * num_weights + at, tl.where(kept, entries, 0.0), mask=inside)


def rounded(updates: Tensor, keys: Tensor, block: int, levels: int) -> tuple[Tensor, Tensor]:
    """What arrives of updates that are rounded to levels at random, and which of them are not finite (devices,)."""
    out, lost = torch.empty_like(updates), _flags(updates)
    block = min(block, updates.shape[1])
    grid = (triton.cdiv(updates.shape[1], block), len(updates))
    size = triton.next_power_of_2(block)
    _rounded[grid](
        updates, keys, out, lost, updates.shape[1], block, float(levels), DRAWS, size, enable_fp_fusion=False
    )
    return out, lost


def signs(updates: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """What arrives of signs with the mean of their block, and which updates are not finite."""
    out, lost = torch.empty_like(updates), _flags(updates)
    blocks = triton.cdiv(updates.shape[1], block)
    last = updates.shape[1] - block * (blocks - 1)
    halvings = block.bit_length() - 1
    _signs[(blocks, len(updates))](updates, out, lost, updates.shape[1], last, block, halvings, enable_fp_fusion=False)
    return out, lost


def halves(updates: Tensor, exponents: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """What arrives of half-precision numbers with a common exponent, int32 (devices, 1), and what is not finite."""
    out, lost = torch.empty_like(updates), _flags(updates)
    grid = (triton.cdiv(updates.shape[1], _CHUNK), len(updates))
    _halves[grid](updates, exponents, out, lost, updates.shape[1], top, _CHUNK, enable_fp_fusion=False)
    return out, lost


def largest(updates: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest entries of each row and zeros, and what is not as it should be, two flags a row (2, devices):
    entries that are not finite, and entries of the last size of which not all are to be taken, but are here."""
    devices, num_weights = updates.shape
    out, flags = torch.empty_like(updates), torch.zeros(2, devices, dtype=torch.int32, device=updates.device)
    prefixes = torch.empty(devices, dtype=torch.int32, device=updates.device)
    wanted = torch.full((devices,), count, dtype=torch.int32, device=updates.device)
    widths = (_TOP_BITS, _LOW_BITS, _LOW_BITS)
    counts = torch.zeros(devices * sum(1 << width for width in widths), dtype=torch.int32, device=updates.device)
    grid, above = (triton.cdiv(num_weights, _CHUNK), devices), sum(widths)
    for step, width in enumerate(widths):
        own, counts = counts[: devices << width], counts[devices << width :]
        first, last = step == 0, step == len(widths) - 1
        _count[grid](
            updates, prefixes, own, flags[0], num_weights, above, above - width, 1 << width, _CHUNK, first, num_warps=8
        )
        _pick[(devices,)](own, prefixes, wanted, flags[1], 1 << width, first, last)
        above -= width
    _largest[grid](updates, prefixes, out, num_weights, _CHUNK)
    return out, flags


def _flags(updates: Tensor) -> Tensor:
    return torch.zeros(len(updates), dtype=torch.int32, device=updates.device)
