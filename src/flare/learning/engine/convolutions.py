# mypy: ignore-errors
"""Convolutions with stride 1 as Triton kernels, for GPUs: the answer, finished, and the gradient of what was given.

Both are products of places by channels. The places of an activation, of which there are many, are the rows: tensor
cores take that factor out of registers, as it comes, shifted by a tap of the window, and it need not be written down
anywhere else. The weights, of which there are few, are the other factor. They are first laid as the tensor cores want
to read them (`_lay`), for each channel of the answer one tap of the window after the other, and where factors are split
(`PAIR`), in two: numbers of 11 bits, and what is left of them.

What follows a convolution is done before it is written: the maximum of windows of 2 x 2, whose four places are in the
same tile, the bias and ReLU. In the gradient of what was given a tile is passed over by the taps that reach nothing
from it. Tiles follow from the shape of a job's activation alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.learning.engine.launching import ceil_div, power_of_2, start
from flare.learning.engine.operations import Pool, Windows
from flare.learning.engine.splitting import PAIR, add_laid_product, rounded

_LAID_AT_ONCE = 1024


@triton.jit
def _lay(
    weights,  # (jobs, out, into, taps)
    laid,  # (jobs, planes, channels, deep)
    weights_job: tl.constexpr,
    channels: tl.constexpr,  # those of the answer, and those that are added up
    inner: tl.constexpr,
    inner_room: tl.constexpr,  # places that those of a tap are given
    taps: tl.constexpr,
    deep: tl.constexpr,
    of_channel: tl.constexpr,  # strides of the weights
    of_inner: tl.constexpr,
    size: tl.constexpr,  # of a plane
    split: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    channel, k = place // deep, place % deep
    tap, m = k // inner_room, k % inner_room
    there = (place < size) & (channel < channels) & (tap < taps) & (m < inner)
    at = weights + job * weights_job + channel * of_channel + m * of_inner + tap
    numbers = tl.load(at, mask=there, other=0.0)
    if split == "pair":
        high = rounded(numbers)
        tl.store(laid + job * (2 * size) + place, high, mask=place < size)
        tl.store(laid + job * (2 * size) + size + place, numbers - high, mask=place < size)
    else:
        if split == "tf32":  # the tensor cores would cut off the last bits, always towards zero
            numbers = tl.where(numbers != numbers, numbers, rounded(numbers))
        tl.store(laid + job * size + place, numbers, mask=place < size)


@triton.jit
def _better(value, best, other, tap: tl.constexpr):
    """The larger of two and which tap it is of; nan is larger than everything."""
    is_better = (other > value) | (other != other)
    return tl.where(is_better, other, value), tl.where(is_better, tap, best)


@triton.jit
def _convolve(
    x,  # (jobs, inner, height, width, samples)
    laid,  # (jobs, planes, channels, deep)
    bias,  # (jobs, channels), not read where there is none
    y,  # (jobs, channels, high, wide, samples)
    which,  # of the same shape, written where there are maxima
    x_job: tl.constexpr,
    laid_job: tl.constexpr,
    bias_job: tl.constexpr,
    channels: tl.constexpr,
    inner: tl.constexpr,
    inner_room: tl.constexpr,
    taps: tl.constexpr,
    window_width: tl.constexpr,
    deep: tl.constexpr,
    plane: tl.constexpr,  # numbers of one of the two planes of weights
    places: tl.constexpr,  # of a channel of the answer
    run: tl.constexpr,  # numbers in a line of the answer
    channel_size: tl.constexpr,  # numbers in a channel and a line of x
    line: tl.constexpr,
    samples: tl.constexpr,
    pool: tl.constexpr,  # 2 where the maximum of 2 x 2 is taken, else 1
    has_bias: tl.constexpr,
    relu: tl.constexpr,
    in_line: tl.constexpr,
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
    precision: tl.constexpr,
):
    tiles: tl.constexpr = (channels + bn - 1) // bn
    several: tl.constexpr = bm // (pool * pool)  # places of the answer in a tile
    tile, job = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = (tile // tiles) * several
    row = tl.arange(0, bm)
    place = (first + row % several) % places
    in_run = place % run
    if pool == 1:
        offset = (place // run) * line + in_run
    else:
        of_pool = row // several
        offset = (place // run) * (pool * line) + (in_run // samples) * (pool * samples) + in_run % samples
        offset += (of_pool // pool) * line + (of_pool % pool) * samples
    if in_line > 1:  # the compiler cannot see that so many places lie side by side and can be read at once
        offset = tl.max_contiguous(tl.multiple_of(offset, in_line), in_line)
    x += job * x_job + offset[:, None]
    channel = (tile % tiles) * bn + tl.arange(0, bn)
    laid += job * laid_job + channel[None, :] * deep
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for step in range(0, deep, bk):
        k = step + tl.arange(0, bk)
        if inner_room % bk == 0:
            tap = step // inner_room
            m = step % inner_room + tl.arange(0, bk)
            shift = m * channel_size + ((tap // window_width) * line + (tap % window_width) * samples)
        else:
            taps_of = k // inner_room
            m = k % inner_room
            shift = m * channel_size + (taps_of // window_width) * line + (taps_of % window_width) * samples
        if inner_room % bk == 0 and inner == inner_room:
            left = tl.load(x + shift[None, :])
        else:
            has = ((m < inner) & (k < taps * inner_room))[None, :]
            left = tl.load(x + shift[None, :], mask=has, other=0.0)
        total = add_laid_product(total, left, laid + k[:, None], plane, precision)
    if pool == 2:
        parts = tl.permute(tl.reshape(total, (2, 2, several, bn)), (2, 3, 1, 0))
        upper, lower = tl.split(parts)  # (several, bn, 2)
        value, one = tl.split(upper)
        two, three = tl.split(lower)
        best = tl.zeros((several, bn), dtype=tl.int32)
        value, best = _better(value, best, one, 1)
        value, best = _better(value, best, two, 2)
        value, best = _better(value, best, three, 3)
    else:
        value = total
    place = first + tl.arange(0, several)
    inside = (place < places)[:, None] & (channel < channels)[None, :]
    if has_bias:
        value += tl.load(bias + job * bias_job + channel, mask=channel < channels, other=0.0)[None, :]
    if relu:
        value = tl.where(value <= 0.0, 0.0, value)
    at = job * (channels * places) + channel[None, :] * places + place[:, None]
    tl.store(y + at, value, mask=inside)
    if pool == 2:
        tl.store(which + at, best.to(tl.uint8), mask=inside)


@triton.jit
def _convolve_back(
    dy,  # (jobs, inner, high, wide, samples)
    laid,  # (jobs, planes, channels, deep)
    dx,  # (jobs, channels, height, width, samples)
    laid_job: tl.constexpr,
    channels: tl.constexpr,
    inner: tl.constexpr,
    inner_room: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    deep: tl.constexpr,
    plane: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    places: tl.constexpr,  # numbers in a channel of dx
    width: tl.constexpr,
    samples: tl.constexpr,
    pad_h: tl.constexpr,
    pad_w: tl.constexpr,
    in_line: tl.constexpr,
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
    precision: tl.constexpr,
):
    tiles: tl.constexpr = (channels + bn - 1) // bn
    line: tl.constexpr = width * samples
    out_line: tl.constexpr = wide * samples
    out_channel: tl.constexpr = high * out_line
    tile, job = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = (tile // tiles) * bm
    place = (first + tl.arange(0, bm)) % places
    row, column = place // line + pad_h, (place % line) // samples + pad_w
    offset = row * out_line + column * samples + place % samples
    channel = (tile % tiles) * bn + tl.arange(0, bn)
    dy += job * (inner * out_channel)
    laid += job * laid_job + channel[None, :] * deep
    # Of the taps of the window those from which a place of this tile can be reached.
    last = tl.minimum(first + bm, places) - 1
    top, bottom = first // line + pad_h, last // line + pad_h
    i_first, i_end = tl.maximum(top - (high - 1), 0), tl.minimum(bottom, kh - 1) + 1
    is_one_line = top == bottom
    left_end = tl.where(is_one_line, (first % line) // samples + pad_w, pad_w)
    right_end = tl.where(is_one_line, (last % line) // samples + pad_w, width - 1 + pad_w)
    j_first, j_end = tl.maximum(left_end - (wide - 1), 0), tl.minimum(right_end, kw - 1) + 1
    steps = (i_end - i_first) * (j_end - j_first) * (inner_room // bk)
    i, j, begin = i_first, j_first, 0
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for _ in range(0, steps):
        m = begin + tl.arange(0, bk)
        source = offset - (i * out_line + j * samples)
        has = (row >= i) & (row < i + high) & (column >= j) & (column < j + wide)
        if in_line > 1:
            source = tl.max_contiguous(tl.multiple_of(source, in_line), in_line)
            has = tl.max_constancy(has, in_line)
        has = has[:, None]
        if inner != inner_room:
            has = has & (m < inner)[None, :]
        left = tl.load(dy + source[:, None] + m[None, :] * out_channel, mask=has, other=0.0)
        total = add_laid_product(total, left, laid + (i * kw + j) * inner_room + m[:, None], plane, precision)
        # Taps side by side read almost the same numbers: they follow one another, while those are at hand.
        j += 1
        begin = tl.where(j == j_end, begin + bk, begin)
        j = tl.where(j == j_end, j_first, j)
        i = tl.where(begin == inner_room, i + 1, i)
        begin = tl.where(begin == inner_room, 0, begin)
    place = first + tl.arange(0, bm)
    at = job * (channels * places) + channel[None, :] * places + place[:, None]
    tl.store(dx + at, total, mask=(place < places)[:, None] & (channel < channels)[None, :])


class PlaceTiles(NamedTuple):
    """How a convolution is cut: places and channels of a tile, the depth of a step, and how many do it.

    split   how factors are split, where not as the precision says: by the compiler
    near    whether numbers of an activation are read two at a time, not four: so they pass through the cache that is
            nearest to the tensor cores, where the taps that follow find them again
    """

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    split: str = ""
    near: bool = False


class _Laid(NamedTuple):
    """Weights laid for a kernel, and how."""

    weights: Tensor
    numbers: dict[str, int]


def choose_place_tiles(channels: int, inner: int, taps: int, *, back: bool, precision: str) -> PlaceTiles:
    """By the shape alone, by which way it goes, and by how factors are rounded; read off `benchmarks/tiles.py` on an
    H200."""
    bn = min(64, max(16, power_of_2(channels)))
    if back:  # of a tap, all places of a step that hold no channel are multiplied for nothing
        return PlaceTiles(128, bn, 16 if taps <= 9 or inner <= 16 else 32, 4, 3)
    if inner < 16:
        return PlaceTiles(128, bn, 32, 4, 3) if inner * taps <= 32 else PlaceTiles(64, bn, 16, 4, 3)
    if precision == "tf32":
        return PlaceTiles(128, bn, 16, 4, 4)
    return PlaceTiles(128, bn, 32, 4, 3) if channels > 32 else PlaceTiles(64, bn, 16, 4, 3)


def _lay_weights(weights: Tensor, channels: int, inner: int, taps: int, cut: PlaceTiles, *, is_dense: bool) -> _Laid:
    """For each channel the taps, one after the other, each with its numbers of inner channels, and room to a full step.

    weights    (jobs, channels, inner, taps), strided
    is_dense   no room is left after a tap
    """
    jobs = len(weights)
    room = inner if is_dense else ceil_div(inner, cut.bk) * cut.bk
    deep, height = ceil_div(room * taps, cut.bk) * cut.bk, ceil_div(channels, cut.bn) * cut.bn
    size = height * deep
    laid = torch.empty((jobs, 2 if cut.split == PAIR else 1, height, deep), device=weights.device, dtype=weights.dtype)
    sizes = {"channels": channels, "inner": inner, "inner_room": room}
    strides = {"weights_job": weights.stride(0), "of_channel": weights.stride(1), "of_inner": weights.stride(2)}
    counts = {"taps": taps, "deep": deep, "size": size, "split": cut.split, "block": _LAID_AT_ONCE}
    start(_lay, (ceil_div(size, _LAID_AT_ONCE), jobs), weights, laid, **sizes, **strides, **counts)
    return _Laid(laid, sizes | {"deep": deep, "plane": size, "laid_job": laid.stride(0)})


def convolve(
    weight: Tensor,
    x: Tensor,
    windows: Windows,
    precision: str,
    *,
    bias: Tensor | None = None,
    pool: Pool | None = None,
    relu: bool = False,
    tiles: PlaceTiles | None = None,
) -> tuple[Tensor, Tensor | None]:
    """weight (jobs, out, C kh kw) by all windows of x (jobs, C, H, W, samples), its padding included, then the maximum
    of 2 x 2 and which of them it was, the bias (jobs, out) and ReLU, each where it is asked for."""
    x = x.contiguous()
    (jobs, inner, height, width, samples), channels = x.shape, weight.shape[1]
    (kh, kw), taps = windows.kernel, math.prod(windows.kernel)
    side = (height - kh + 1, width - kw + 1)
    if pool is not None:
        assert can_pool(pool)
        side = (side[0] // 2, side[1] // 2)
    cut = _with_split(tiles or choose_place_tiles(channels, inner, taps, back=False, precision=precision), precision)
    parts = weight.as_strided((jobs, channels, inner, taps), (*weight.stride()[:2], taps, 1), weight.storage_offset())
    laid = _lay_weights(parts, channels, inner, taps, cut, is_dense=inner < 16)
    y = torch.empty((jobs, channels, *side, samples), device=x.device, dtype=x.dtype)
    which = None if pool is None else torch.empty(y.shape, device=x.device, dtype=torch.uint8)
    line, places, of_pool = width * samples, math.prod(side) * samples, 1 if pool is None else 4
    sizes = {"x_job": x.stride(0), "bias_job": 0 if bias is None else bias.stride(0), "taps": taps, "window_width": kw}
    sizes |= {"places": places, "run": side[1] * samples, "channel_size": height * line, "line": line}
    sizes |= {"samples": samples, "pool": math.isqrt(of_pool), "has_bias": bias is not None, "relu": relu}
    sizes |= {"in_line": _in_line(samples, cut)}
    tensors = (x, laid.weights, x if bias is None else bias, y, x if which is None else which)
    grid = (ceil_div(places, cut.bm // of_pool) * ceil_div(channels, cut.bn), jobs)
    start(_convolve, grid, *tensors, **laid.numbers, **sizes, **_tiling(cut))
    return y, which


def convolve_back(
    weight: Tensor, dy: Tensor, windows: Windows, precision: str, tiles: PlaceTiles | None = None
) -> Tensor:
    """The gradient of x there, without its padding, (jobs, C, H, W, samples), from dy (jobs, out, h, w, samples)."""
    dy = dy.contiguous()
    (jobs, inner, high, wide, samples), ((kh, kw), (pad_h, pad_w)) = dy.shape, (windows.kernel, windows.padding)
    taps = kh * kw
    channels = weight.shape[2] // taps
    height, width = windows.side[0] - 2 * pad_h, windows.side[1] - 2 * pad_w
    cut = _with_split(tiles or choose_place_tiles(channels, inner, taps, back=True, precision=precision), precision)
    strides = (weight.stride(0), taps, weight.stride(1), 1)
    parts = weight.as_strided((jobs, channels, inner, taps), strides, weight.storage_offset())
    laid = _lay_weights(parts, channels, inner, taps, cut, is_dense=False)
    dx = torch.empty((jobs, channels, height, width, samples), device=dy.device, dtype=dy.dtype)
    places = height * width * samples
    sizes = {"kh": kh, "kw": kw, "high": high, "wide": wide, "places": places, "width": width, "samples": samples}
    sizes |= {"pad_h": pad_h, "pad_w": pad_w, "in_line": _in_line(samples, cut)}
    grid = (ceil_div(places, cut.bm) * ceil_div(channels, cut.bn), jobs)
    start(_convolve_back, grid, dy, laid.weights, dx, **laid.numbers, **sizes, **_tiling(cut))
    return dx


def can_pool(pool: Pool | None) -> bool:
    """Whether a convolution can be finished by it in one."""
    return pool is None or (pool.kernel == (2, 2) and not pool.average)


def _with_split(cut: PlaceTiles, precision: str) -> PlaceTiles:
    split = cut.split or (PAIR if precision != "tf32" else precision)
    assert precision != "tf32" or split == precision
    return cut._replace(split=split)


def _in_line(samples: int, cut: PlaceTiles) -> int:
    return math.gcd(samples, 2 if cut.near else 4)


def _tiling(cut: PlaceTiles) -> dict[str, int | str]:
    tiling = {"bm": cut.bm, "bn": cut.bn, "bk": cut.bk, "num_warps": cut.warps, "num_stages": cut.stages}
    return tiling | {"precision": cut.split}
