# mypy: ignore-errors
"""Matrix products as Triton kernels, for GPUs: of dense layers, and of the weights' gradient of convolutions.

Factors in float32 are split, into two of TF32 (10 bits) or three of bfloat16 (7 bits), and three of the four or six of
the nine products added on the tensor cores ("tf32x3", "bf16x6"): about the accuracy of float32 at several times its
speed. The windows of a convolution are never laid out: entry (tap, place) of their matrix is the number at
offset(tap) + offset(place) of the activation, so the kernel reads it from there. Tiles follow from the shape of a job's
product alone: it is added up in the same order, whatever the number of jobs.

A step of a dense layer adds its gradient, a product, onto the weights where they lie (`_add_outer`): a tile is added up
as by `_product`, and added on with one rounding, as by PyTorch's `addcmul_`. So the weights get the bits that they get
where the gradient is written down first, as it is beside rules that add something to it. With few samples, where all is
reading and writing, the way back is one kernel (`_back_of_few`), which reads the weights once for the gradient of the
input and for their step, or for their gradient, where that is written down.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.nvidia.compiler import CUDAOptions

from flare.learning.engine.launching import ceil_div, power_of_2, start
from flare.learning.engine.operations import Back, Gradient, Onto, Pair, window_columns
from flare.learning.engine.splitting import ROUNDED, add_product

_THREE, _SIX = "tf32x3", "bf16x6"


@triton.jit
def _tap_offset(
    tap,
    window_width: tl.constexpr,
    taps: tl.constexpr,
    channel: tl.constexpr,
    line: tl.constexpr,
    samples: tl.constexpr,
):
    return (tap // taps) * channel + ((tap % taps) // window_width) * line + (tap % window_width) * samples


@triton.jit
def _place_offset(place, run: tl.constexpr, line: tl.constexpr, in_line: tl.constexpr):
    offset = (place // run) * line + place % run
    if in_line > 1:  # the compiler cannot see that so many places lie side by side and can be read at once
        offset = tl.max_contiguous(tl.multiple_of(offset, in_line), in_line)
    return offset


@triton.jit
def _product(
    a,
    b,
    c,  # (jobs, parts, rows, columns)
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    parts: tl.constexpr,
    part_depth: tl.constexpr,
    a_job: tl.constexpr,  # strides; those of b within a job are 0 where it is windowed
    a_row: tl.constexpr,
    a_depth: tl.constexpr,
    b_job: tl.constexpr,
    b_depth: tl.constexpr,
    b_column: tl.constexpr,
    window_width: tl.constexpr,  # a window's width; 0 where b is a matrix as it is
    taps: tl.constexpr,  # a window's height x width
    channel: tl.constexpr,  # numbers in a channel, a line and a batch of the activation
    line: tl.constexpr,
    samples: tl.constexpr,
    run: tl.constexpr,  # numbers in a line of the output
    in_line: tl.constexpr,  # a number by which the samples can be divided: 1, 2 or 4
    taps_down: tl.constexpr,  # whether the depth runs over the taps and the columns over the places, or the other way
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
    precision: tl.constexpr,
    swapped: tl.constexpr,  # whether the tensor cores are given b^T a^T, b from registers
):
    tiles: tl.constexpr = (columns + bn - 1) // bn
    tile, job, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = (tile // tiles) * bm + tl.arange(0, bm)
    column = (tile % tiles) * bn + tl.arange(0, bn)
    a += job * a_job
    b += job * b_job
    if window_width == 0:
        across = column * b_column
    elif taps_down:
        across = _place_offset(column, run, line, in_line)
    else:
        across = _tap_offset(column, window_width, taps, channel, line, samples)
    total = tl.zeros((bn, bm) if swapped else (bm, bn), dtype=tl.float32)
    for step in range(0, part_depth, bk):
        k = part * part_depth + step + tl.arange(0, bk)
        if window_width == 0:
            below = k * b_depth
        elif taps_down:
            below = _tap_offset(k, window_width, taps, channel, line, samples)
        else:
            below = _place_offset(k, run, line, in_line)
        inside = k < depth
        # Addresses are laid as the tensor cores take them: a tile that is turned afterwards is read piece by piece.
        if swapped:
            of_b = b + across[:, None] + below[None, :]
            left = tl.load(of_b, mask=(column[:, None] < columns) & inside[None, :], other=0.0)
            of_a = a + row[None, :] * a_row + k[:, None] * a_depth
            right = tl.load(of_a, mask=(row[None, :] < rows) & inside[:, None], other=0.0)
        else:
            of_a = a + row[:, None] * a_row + k[None, :] * a_depth
            left = tl.load(of_a, mask=(row[:, None] < rows) & inside[None, :], other=0.0)
            of_b = b + across[None, :] + below[:, None]
            right = tl.load(of_b, mask=inside[:, None] & (column[None, :] < columns), other=0.0)
        total = add_product(total, left, right, precision)
    c += (job * parts + part) * (rows * columns)
    if swapped:
        at = row[None, :] * columns + column[:, None]
        tl.store(c + at, total, mask=(row[None, :] < rows) & (column[:, None] < columns))
    else:
        at = row[:, None] * columns + column[None, :]
        tl.store(c + at, total, mask=(row[:, None] < rows) & (column[None, :] < columns))


@triton.jit
def _add_parts(c, total, parts: tl.constexpr, size: tl.constexpr, block: tl.constexpr):
    job = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    c += job * (parts * size) + place
    numbers = tl.load(c, mask=place < size, other=0.0)
    for part in tl.static_range(1, parts):
        numbers += tl.load(c + part * size, mask=place < size, other=0.0)
    tl.store(total + job * size + place, numbers, mask=place < size)


@triton.jit
def _add_outer(
    weights,  # (jobs, rows, columns), each job's without gaps
    dy,  # (jobs, rows, depth)
    x,  # (jobs, columns, depth)
    scale,  # (jobs,)
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    weights_job: tl.constexpr,  # strides
    dy_job: tl.constexpr,
    dy_row: tl.constexpr,
    dy_depth: tl.constexpr,
    x_job: tl.constexpr,
    x_column: tl.constexpr,
    x_depth: tl.constexpr,
    scale_job: tl.constexpr,
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,
    precision: tl.constexpr,
):
    tiles: tl.constexpr = (columns + bn - 1) // bn
    tile, job = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = (tile // tiles) * bm + tl.arange(0, bm)
    column = (tile % tiles) * bn + tl.arange(0, bn)
    dy += job * dy_job + row[:, None] * dy_row
    x += job * x_job + column[None, :] * x_column
    total = tl.zeros((bm, bn), dtype=tl.float32)
    for step in range(0, depth, bk):
        k = step + tl.arange(0, bk)
        left = tl.load(dy + k[None, :] * dy_depth, mask=(row[:, None] < rows) & (k[None, :] < depth), other=0.0)
        right = tl.load(x + k[:, None] * x_depth, mask=(k[:, None] < depth) & (column[None, :] < columns), other=0.0)
        total = add_product(total, left, right, precision)
    weights += job * weights_job + row[:, None] * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    # The weights are read last: held meanwhile, they would leave room for half as many tiles at once.
    before = tl.load(weights, mask=inside, other=0.0)
    tl.store(weights, tl.fma(total, tl.load(scale + job * scale_job), before), mask=inside)


@triton.jit
def _back_of_few(
    weights,  # (jobs, rows, columns), each job's without gaps
    dy,  # (jobs, rows, samples)
    x,  # (jobs, columns, samples)
    scale,  # (jobs,), of what is added
    onto,  # as weights: where their gradient is added or, without gaps, written
    dx,  # (jobs, columns, samples), the gradient of x
    rows: tl.constexpr,
    columns: tl.constexpr,
    samples: tl.constexpr,
    weights_job: tl.constexpr,  # strides
    dy_job: tl.constexpr,
    dy_row: tl.constexpr,
    dy_sample: tl.constexpr,
    x_job: tl.constexpr,
    x_column: tl.constexpr,
    x_sample: tl.constexpr,
    scale_job: tl.constexpr,
    onto_job: tl.constexpr,
    is_added: tl.constexpr,
    in_place: tl.constexpr,  # whether onto are the weights
    bm: tl.constexpr,
    bn: tl.constexpr,
    bk: tl.constexpr,  # room for all samples
    precision: tl.constexpr,
    precision_back: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    column, sample = tl.program_id(0) * bn + tl.arange(0, bn), tl.arange(0, bk)
    is_column, is_sample = column < columns, sample < samples
    weights += job * weights_job + column[None, :]
    onto += job * onto_job + column[None, :]
    dy += job * dy_job + sample[None, :] * dy_sample
    of_x = x + job * x_job + column[None, :] * x_column + sample[:, None] * x_sample
    right = tl.load(of_x, mask=is_sample[:, None] & is_column[None, :], other=0.0)
    into = tl.zeros((bn, bk), dtype=tl.float32)
    for first in range(0, rows, bm):
        row = first + tl.arange(0, bm)
        inside = (row < rows)[:, None] & is_column[None, :]
        before = tl.load(weights + row[:, None] * columns, mask=inside, other=0.0)
        left = tl.load(dy + row[:, None] * dy_row, mask=(row < rows)[:, None] & is_sample[None, :], other=0.0)
        total = add_product(tl.zeros((bm, bn), dtype=tl.float32), left, right, precision)
        into = add_product(into, tl.trans(before), left, precision_back)
        if is_added:
            if not in_place:
                before = tl.load(onto + row[:, None] * columns, mask=inside, other=0.0)
            total = tl.fma(total, tl.load(scale + job * scale_job), before)
        tl.store(onto + row[:, None] * columns, total, mask=inside)
    of_dx = dx + job * (columns * samples) + column[:, None] * samples + sample[None, :]
    tl.store(of_dx, into, mask=is_column[:, None] & is_sample[None, :])


_KNOWS_SIX = _SIX in CUDAOptions.allowed_dot_input_precisions and isinstance(_product, triton.JITFunction)
"""Later versions of Triton, but not its interpreter."""


class Tiles(NamedTuple):
    """How a product is cut: the size of a tile of the answer, the depth of a step, and how many do it.

    parts     into how many the depth is divided
    split     how factors are split, where not as the precision says: into three of bfloat16, by which six of their
              products are added (`_SIX`); or, where they are to be TF32, rounded by hand, so that the left one is
              taken from registers (`ROUNDED`)
    swapped   whether the right factor takes the place of the left
    """

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    parts: int = 1
    split: str = ""
    swapped: bool = False

    @property
    def six(self) -> bool:
        """Whether six products are added."""
        return self.split == _SIX


class Window(NamedTuple):
    """A convolution's windows on an activation (C, H, W, samples), with stride 1."""

    kernel: Pair
    side: Pair
    samples: int


def choose_tiles(
    rows: int, columns: int, depth: int, *, along_depth: bool, precision: str, is_turned: bool = False
) -> Tiles:
    """By the shape alone, by whether neighbours in the memory of the right factor are neighbours in the depth, by
    whether those of the left one are not (`is_turned`), and by how factors are rounded.

    Read off `benchmarks/tiles.py` on an H200. Where they are, its tensor cores take TF32 as it lies there; where they
    are not, bfloat16 alone, and six products of that are faster than three of TF32.
    """
    is_split = precision == _THREE
    if not along_depth and 16 < columns <= 64 and rows > 32:
        if is_split:
            cut = _tiles_of_few_columns(depth, is_turned=is_turned)
        else:
            cut = (
                Tiles(128, 64, 64, 4, 3, split=ROUNDED)
                if is_turned
                else Tiles(64, 64, 64, 4, 3, split=ROUNDED, swapped=True)
            )
    else:
        cut = _tiles_along_depth(rows, columns, depth) if along_depth else _tiles_across(rows, columns, depth)
        if not is_split:
            return _tiles_of_one_product(rows, columns, depth, cut, along_depth=along_depth)
    return _tiles_without_six(rows, columns, cut) if cut.six and not _KNOWS_SIX else cut


def _tiles_of_few_columns(depth: int, *, is_turned: bool) -> Tiles:
    """As of a dense layer and its way back."""
    if is_turned:
        return Tiles(128, 64, 32, 4, 3, split=_SIX)
    return Tiles(64, 64, 64 if depth <= 1024 else 32, 4, 3, swapped=True)


def _tiles_of_one_product(rows: int, columns: int, depth: int, cut: Tiles, *, along_depth: bool) -> Tiles:
    """Where factors are rounded, not split, other tiles than `cut` are better for some shapes."""
    if along_depth and rows > 32 and columns > 512 and depth > 64:
        return Tiles(64, 128, 32, 4, 3)
    if along_depth and rows <= 32 < columns and depth > 64:
        few = Tiles(_tile(rows, 32), 128, 32, 4, 4, _parts(depth, 8), swapped=True)
        return few if columns <= 128 else Tiles(_tile(rows, 32), 128, 64, 4, 2)
    if not along_depth and columns <= 16 and rows > 32 and depth < 2048:
        return Tiles(64, 16, 32, 2, 3)
    if not along_depth and columns > 128 and rows > 512 and 32 < depth <= 64:
        return Tiles(32, 256, 32, 4, 2)
    return _tiles_without_six(rows, columns, cut) if cut.six else cut


def _tiles_without_six(rows: int, columns: int, cut: Tiles) -> Tiles:
    return Tiles(_tile(rows, 32), _tile(columns, 128), 32, 4, 3, cut.parts)


def _tiles_across(rows: int, columns: int, depth: int) -> Tiles:
    if columns <= 16 and rows > 32:
        return Tiles(64, 16, 64, 2, 4, _parts(depth, 8)) if depth >= 2048 else Tiles(128, 16, 16, 4, 4)
    if rows <= 32 and columns <= 128:  # a small answer
        return Tiles(_tile(rows, 32), _tile(columns, 128), 64, 4, 3, _parts(depth, 16))
    if rows <= 32:
        bm = _tile(rows, 32)
        return Tiles(bm, 256, 32, 4, 1) if depth <= 32 else Tiles(bm, 256, 16, 4, 3)
    if depth <= 16:  # one step: all is reading and writing
        return Tiles(32, 128, 16, 4, 1)
    if depth <= 64:
        return Tiles(64, 128, 32, 4, 1, split=_SIX) if depth <= 32 else Tiles(64, 64, 64, 4, 1, split=_SIX)
    return Tiles(64, 64, 32, 4, 4, split=_SIX)


def _tiles_along_depth(rows: int, columns: int, depth: int) -> Tiles:
    if depth <= 16:
        return Tiles(32, 64, 16, 4, 1)
    if depth <= 64:
        return Tiles(_tile(rows, 64), 64, _tile(depth, 64), 4, 1)
    if rows > 32:
        return Tiles(64, 64, 32, 4, 3, 1 if columns > 512 else _parts(depth, 4))
    bm = _tile(rows, 32)
    if columns <= 32:
        return Tiles(bm, 32, 64, 2, 3, _parts(depth, 16))
    return Tiles(bm, 128 if columns <= 128 else 64, 64, 4, 3, _parts(depth, 8) if columns <= 128 else 1, swapped=True)


def _parts(depth: int, max_parts: int) -> int:
    """Into how many parts a long sum is cut, so that more tensor cores take part in it."""
    return max(1, min(max_parts, depth // 1024))


def _tile(size: int, max_size: int) -> int:
    return min(max_size, max(16, power_of_2(size)))


def launch(
    a: Tensor,
    b: Tensor,
    columns: int,
    depth: int,
    precision: str,
    *,
    window: Window | None = None,
    taps_down: bool = False,
    tiles: Tiles | None = None,
) -> Tensor:
    """a (jobs, rows, depth) by b (jobs, depth, columns), or by the windows of b (jobs, C, H, W, samples)."""
    jobs, rows = a.shape[:2]
    along_depth = not taps_down if window is not None else b.stride(1) == 1
    cut = tiles
    if cut is None:
        is_turned = a.stride(1) == 1 and a.stride(2) != 1
        cut = choose_tiles(rows, columns, depth, along_depth=along_depth, precision=precision, is_turned=is_turned)
    split = _split(cut, precision)
    c = torch.empty((jobs, cut.parts, rows, columns), device=a.device, dtype=a.dtype)
    part_depth = -(-depth // (cut.parts * cut.bk)) * cut.bk
    sizes = {"rows": rows, "columns": columns, "depth": depth, "parts": cut.parts, "part_depth": part_depth}
    strides = {"a_job": a.stride(0), "a_row": a.stride(1), "a_depth": a.stride(2), "b_job": b.stride(0)}
    if window is None:
        strides |= {"b_depth": b.stride(1), "b_column": b.stride(2)}
        windows = dict.fromkeys(("window_width", "taps", "channel", "line", "samples", "run", "in_line"), 0)
    else:
        strides |= {"b_depth": 0, "b_column": 0}
        windows = _window_numbers(window)
    tiling = {"bm": cut.bm, "bn": cut.bn, "bk": cut.bk, "num_warps": cut.warps, "num_stages": cut.stages}
    grid = (ceil_div(rows, cut.bm) * ceil_div(columns, cut.bn), jobs, cut.parts)
    asked = {"taps_down": taps_down, "precision": split, "swapped": cut.swapped}
    start(_product, grid, a, b, c, **sizes, **strides, **windows, **asked, **tiling)
    return c.view(jobs, rows, columns) if cut.parts == 1 else _added(c)


def _split(cut: Tiles, precision: str) -> str:
    assert cut.split in (("", _SIX) if precision == _THREE else ("", ROUNDED))
    return cut.split or precision


_ADDED_AT_ONCE = 1024


def _added(c: Tensor) -> Tensor:
    """The sum of the parts of (jobs, parts, rows, columns), in their order."""
    jobs, parts, rows, columns = c.shape
    total = torch.empty((jobs, rows, columns), device=c.device, dtype=c.dtype)
    grid = (ceil_div(rows * columns, _ADDED_AT_ONCE), jobs)
    start(_add_parts, grid, c, total, parts=parts, size=rows * columns, block=_ADDED_AT_ONCE)
    return total


def add_outer_(weights: Tensor, dy: Tensor, x: Tensor, scale: Tensor, precision: str, tiles: Tiles) -> None:
    """Add scale (jobs, 1) times dy x^T, of dy (jobs, out, samples) and x (jobs, in, samples), onto weights
    (jobs, out, in), in place. A tile is never divided into parts."""
    (jobs, rows, depth), columns = dy.shape, x.shape[1]
    assert weights.stride()[1:] == (columns, 1)
    strides = {"weights_job": weights.stride(0), "scale_job": scale.stride(0)}
    strides |= {"dy_job": dy.stride(0), "dy_row": dy.stride(1), "dy_depth": dy.stride(2)}
    strides |= {"x_job": x.stride(0), "x_column": x.stride(1), "x_depth": x.stride(2)}
    tiling = {"bm": tiles.bm, "bn": tiles.bn, "bk": tiles.bk, "num_warps": tiles.warps, "num_stages": tiles.stages}
    sizes = {"rows": rows, "columns": columns, "depth": depth}
    grid = (ceil_div(rows, tiles.bm) * ceil_div(columns, tiles.bn), jobs)
    start(_add_outer, grid, weights, dy, x, scale, **sizes, **strides, precision=_split(tiles, precision), **tiling)


FEW = 16
"""Samples up to which the way back of a dense layer is one kernel. With 40, it took a third longer than two."""
BACK_OF_FEW = {_THREE: Tiles(32, 64, FEW, 4, 1), "tf32": Tiles(32, 128, FEW, 4, 2)}
"""By how factors are rounded. Read off `benchmarks/tiles.py` on an H200."""


def back_of_few(
    weight: Tensor, dy: Tensor, x: Tensor, onto: Onto | None, precision: str, tiles: Tiles | None = None
) -> tuple[Tensor, Gradient]:
    """As of `Operations.dense_back`, of a few samples."""
    (jobs, rows, samples), columns = dy.shape, x.shape[1]
    cut = BACK_OF_FEW[precision] if tiles is None else tiles
    assert samples <= cut.bk
    dx = torch.empty((jobs, columns, samples), device=dy.device, dtype=dy.dtype)
    gradient = torch.empty((jobs, rows, columns), device=dy.device, dtype=dy.dtype) if onto is None else None
    target, scale = (gradient, x) if onto is None else onto
    assert weight.stride()[1:] == target.stride()[1:] == (columns, 1)
    strides = {"weights_job": weight.stride(0), "scale_job": scale.stride(0), "onto_job": target.stride(0)}
    strides |= {"dy_job": dy.stride(0), "dy_row": dy.stride(1), "dy_sample": dy.stride(2)}
    strides |= {"x_job": x.stride(0), "x_column": x.stride(1), "x_sample": x.stride(2)}
    sizes = {"rows": rows, "columns": columns, "samples": samples}
    asked = {"is_added": onto is not None, "in_place": weight.data_ptr() == target.data_ptr()}
    tiling = {"bm": cut.bm, "bn": cut.bn, "bk": cut.bk, "num_warps": cut.warps, "num_stages": cut.stages}
    tiling |= {"precision": precision, "precision_back": precision if precision == _THREE else ROUNDED}
    tensors = (weight, dy, x, scale, target, dx)
    start(_back_of_few, (ceil_div(columns, cut.bn), jobs), *tensors, **sizes, **strides, **asked, **tiling)
    return dx, gradient


def _window_numbers(window: Window) -> dict[str, int]:
    (kh, kw), (height, width), samples = window
    line, run = width * samples, (width - kw + 1) * samples
    numbers = {"window_width": kw, "taps": kh * kw, "channel": height * line}
    return numbers | {"line": line, "samples": samples, "run": run, "in_line": math.gcd(samples, 4)}


class TensorCores:
    """Products by the kernel."""

    samples_unit = 2

    def __init__(self, *, tf32: bool = False) -> None:
        self._precision = "tf32" if tf32 else _THREE

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """One batched product."""
        return launch(a, b, b.shape[2], a.shape[2], self._precision)

    def multiply_windows(self, weight: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """Without columns where the windows lie one apart."""
        if stride != (1, 1):
            return self.multiply(weight, window_columns(x, kernel, stride))
        (kh, kw), (height, width), samples = kernel, x.shape[2:4], x.shape[4]
        places = (height - kh + 1) * (width - kw + 1) * samples
        window = Window(kernel, (height, width), samples)
        return launch(weight, x.contiguous(), places, weight.shape[2], self._precision, window=window, taps_down=True)

    def window_gradient(self, dy: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """Without columns where the windows lie one apart."""
        if stride != (1, 1):
            return self.multiply(dy, window_columns(x, kernel, stride).transpose(1, 2))
        _, channels, height, width, samples = x.shape
        window = Window(kernel, (height, width), samples)
        return launch(dy, x.contiguous(), channels * math.prod(kernel), dy.shape[2], self._precision, window=window)

    def dense_back(self, weight: Tensor, dy: Tensor, x: Tensor, onto: Onto | None, *, to_input: bool) -> Back:
        """Of few samples in one pass over the weights. Otherwise the gradient of the weights is added onto them without
        being written down, but for batches of thousands."""
        sizes = (dy.shape[1], x.shape[1], dy.shape[2])
        if to_input and sizes[2] <= FEW:
            return back_of_few(weight, dy, x, onto, self._precision)
        dx = self.multiply(weight.transpose(1, 2), dy) if to_input else None
        tiles = choose_tiles(*sizes, along_depth=x.stride(2) == 1, precision=self._precision)
        if onto is not None and not (tiles.parts > 1 or tiles.six or tiles.swapped):
            add_outer_(onto.weights, dy, x, onto.scale, self._precision, tiles)
            return dx, None
        gradient = self.multiply(dy, x.transpose(1, 2))
        if onto is None:
            return dx, gradient
        onto.weights.addcmul_(gradient, onto.scale[:, :, None])
        return dx, None
