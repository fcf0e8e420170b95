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

_CHUNK = 8192


@triton.jit
def _read(updates, lost, device, at, inside, num_weights):
    """Entries of an update, zeros outside; where one of them is not finite, the update is lost."""
    entries = tl.load(updates + device * num_weights + at, mask=inside, other=0.0)
    not_finite = (entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= 0x7F800000
    if tl.max(not_finite.to(tl.int32), 0) > 0:
        tl.store(lost + device, 1)
    return entries


@triton.jit
def _places(num_weights, size: tl.constexpr):
    """Of which device and which chunk this program is, the places of its entries, and which of them there are."""
    device, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    at = chunk * size + tl.arange(0, size)
    return device, chunk, at, at < num_weights


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
    entries = _read(updates, lost, device, at, inside, num_weights)
    scale = tl.max(tl.abs(entries), 0)
    exact = tl.div_rn(entries, tl.where(scale > 0.0, scale, 1.0) + tl.zeros_like(entries)) * levels
    below = tl.floor(exact)
    word = (at // 2 + 1).to(tl.uint64) * tl.full((), 0x9E3779B97F4A7C15, tl.uint64)
    word = _splitmix(word + tl.load(keys + device).to(tl.uint64, bitcast=True))
    drawn = (tl.where(at % 2 == 0, word, word >> 32) & (draws - 1)).to(tl.float32)
    level = below + tl.where(drawn < (exact - below) * draws, 1.0, 0.0)
    level = (level + levels) - levels  # no negative zero
    received = tl.div_rn(level, levels + tl.zeros_like(entries)) * scale
    tl.store(out + device * num_weights + at, received, mask=inside)


@triton.jit
def _signs(updates, out, lost, num_weights, count_last, size: tl.constexpr, halvings: tl.constexpr):
    device, _, at, inside = _places(num_weights, size)
    entries = _read(updates, lost, device, at, inside, num_weights)
    sums = tl.abs(entries).to(tl.float64)
    for i in tl.static_range(halvings):
        sums = tl.sum(tl.reshape(sums, (2, size >> (i + 1))), 0)
    total = tl.sum(sums, 0)
    count = tl.where(tl.program_id(0) == tl.num_programs(0) - 1, count_last, size).to(tl.float64)
    scale = libdevice.div_rn(total, count).to(tl.float32)
    tl.store(out + device * num_weights + at, tl.where(entries >= 0.0, scale, -scale), mask=inside)


@triton.jit
def _halves(updates, exponents, out, lost, num_weights, top, size: tl.constexpr):
    device, _, at, inside = _places(num_weights, size)
    entries = _read(updates, lost, device, at, inside, num_weights)
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
def _largest(updates, least, out, kept, equals, lost, num_weights, size: tl.constexpr):
    device, chunk, at, inside = _places(num_weights, size)
    entries = _read(updates, lost, device, at, inside, num_weights)
    sizes = entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    smallest = tl.load(least + device)
    large = inside & (sizes >= smallest)
    tl.atomic_add(kept + device, tl.sum(large.to(tl.int32), 0), sem="relaxed")
    equal = inside & (sizes == smallest)
    tl.store(equals + device * tl.num_programs(0) + chunk, tl.sum(equal.to(tl.int32), 0))
    tl.store(out + device * num_weights + at, tl.where(large, entries, 0.0), mask=inside)


@triton.jit
def _drop_last(least, out, kept, equals, num_weights, count, chunks, size: tl.constexpr, width: tl.constexpr):
    device, chunk, at, inside = _places(num_weights, size)
    each = tl.arange(0, width)
    later = tl.sum(tl.load(equals + device * chunks + each, mask=(each > chunk) & (each < chunks), other=0), 0)
    surplus = tl.load(kept + device) - count - later  # of this chunk and those before it
    if (surplus > 0) & (tl.load(equals + device * chunks + chunk) > 0):
        entries = tl.load(out + device * num_weights + at, mask=inside, other=0.0)
        sizes = entries.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        equal = (sizes == tl.load(least + device)) & inside
        found = equal.to(tl.int32)
        from_last = tl.sum(found, 0) - tl.cumsum(found, 0)  # 0 for the last of them
        tl.store(out + device * num_weights + at, tl.zeros_like(entries), mask=equal & (from_last < surplus))


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


def largest(updates: Tensor, least: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` entries of each update that are largest, and zeros; and which updates are not finite.

    `least`, int32 (devices, 1), is the last size that is taken, as bits without the sign; of that size the first are.
    """
    out, kept, lost = torch.empty_like(updates), _flags(updates), _flags(updates)
    chunks = triton.cdiv(updates.shape[1], _CHUNK)
    equals = torch.empty(len(updates), chunks, dtype=torch.int32, device=updates.device)  # to the last size, by chunk
    grid, width = (chunks, len(updates)), triton.next_power_of_2(chunks)
    _largest[grid](updates, least, out, kept, equals, lost, updates.shape[1], _CHUNK)
    _drop_last[grid](least, out, kept, equals, updates.shape[1], count, chunks, _CHUNK, width)
    return out, lost


def _flags(updates: Tensor) -> Tensor:
    return torch.zeros(len(updates), dtype=torch.int32, device=updates.device)
