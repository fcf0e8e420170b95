# mypy: ignore-errors
"""The matrix products of layers as one Triton kernel, for GPUs.

Factors in float32 are split into two of 10 bits each, and three of their four products added on the tensor cores
("tf32x3"): about the accuracy of float32 at several times its speed. The windows of a convolution are never laid out:
entry (tap, place) of their matrix is the number at offset(tap) + offset(place) of the activation, so the kernel reads
it from there. Tiles are fixed by the shape of the product: the same product always adds in the same order.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.learning.engine.products import Pair, Plain


@triton.jit
def _tap_offset(tap, KW: tl.constexpr, TAPS: tl.constexpr, CHANNEL: tl.constexpr, LINE: tl.constexpr, B: tl.constexpr):
    return (tap // TAPS) * CHANNEL + ((tap % TAPS) // KW) * LINE + (tap % KW) * B


@triton.jit
def _place_offset(place, RUN: tl.constexpr, LINE: tl.constexpr):
    return (place // RUN) * LINE + place % RUN


@triton.jit
def _product(
    a,
    b,
    c,
    a_job,
    b_job,
    c_part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PART: tl.constexpr,  # depth of a part
    A_ROW: tl.constexpr,  # strides, 0 for a windowed b
    A_DEPTH: tl.constexpr,
    B_DEPTH: tl.constexpr,
    B_COLUMN: tl.constexpr,
    KW: tl.constexpr,  # a window's width; 0 where b is a matrix as it is
    TAPS: tl.constexpr,  # a window's height x width
    CHANNEL: tl.constexpr,  # numbers in a channel, a line and a batch of the activation
    LINE: tl.constexpr,
    B: tl.constexpr,
    RUN: tl.constexpr,  # numbers in a line of the output
    TAPS_DOWN: tl.constexpr,  # whether the depth runs over the taps and the columns over the places, or the other way
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tiles: tl.constexpr = (COLUMNS + BN - 1) // BN
    tile, job, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = (tile // tiles) * BM + tl.arange(0, BM)
    column = (tile % tiles) * BN + tl.arange(0, BN)
    a += job * a_job + row[:, None] * A_ROW
    b += job * b_job
    if KW == 0:
        b += column[None, :] * B_COLUMN
    elif TAPS_DOWN:
        b += _place_offset(column, RUN, LINE)[None, :]
    else:
        b += _tap_offset(column, KW, TAPS, CHANNEL, LINE, B)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(0, PART, BK):
        k = part * PART + step + tl.arange(0, BK)
        if KW == 0:
            below = k * B_DEPTH
        elif TAPS_DOWN:
            below = _tap_offset(k, KW, TAPS, CHANNEL, LINE, B)
        else:
            below = _place_offset(k, RUN, LINE)
        left = tl.load(a + k[None, :] * A_DEPTH, mask=(row[:, None] < ROWS) & (k[None, :] < DEPTH), other=0.0)
        right = tl.load(b + below[:, None], mask=(k[:, None] < DEPTH) & (column[None, :] < COLUMNS), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    c += part * c_part + job * (ROWS * COLUMNS) + row[:, None] * COLUMNS + column[None, :]
    tl.store(c, total, mask=(row[:, None] < ROWS) & (column[None, :] < COLUMNS))


class Tiles(NamedTuple):
    """How a product is cut: the size of a tile of the answer, the depth of a step, and how many do it."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    parts: int = 1


class Window(NamedTuple):
    """A convolution's windows on an activation (C, H, W, samples), with stride 1."""

    kernel: Pair
    side: Pair
    samples: int


def choose_tiles(rows: int, columns: int, depth: int) -> Tiles:
    """By the shape alone."""
    if rows <= 32 and columns <= 64:  # a small answer of a long sum: share the sum
        parts = max(1, min(16, depth // 1024))
        return Tiles(_tile(rows, 32), _tile(columns, 64), 64, 4, 3, parts)
    if depth <= 32:  # one step: all is reading and writing
        return Tiles(_tile(rows, 64), _tile(columns, 128), 32, 4, 1)
    if columns <= 64:
        return Tiles(_tile(rows, 128), 64, 32, 4, 3)
    return Tiles(_tile(rows, 64), _tile(columns, 128), 32, 4, 3)


def _tile(size: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(size)))


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
    cut = choose_tiles(rows, columns, depth) if tiles is None else tiles
    c = torch.empty((cut.parts, jobs, rows, columns), device=a.device, dtype=a.dtype)
    sizes = dict(ROWS=rows, COLUMNS=columns, DEPTH=depth, PART=-(-depth // (cut.parts * cut.bk)) * cut.bk)
    strides = dict(A_ROW=a.stride(1), A_DEPTH=a.stride(2), B_DEPTH=0, B_COLUMN=0)
    windows = dict(KW=0, TAPS=0, CHANNEL=0, LINE=0, B=0, RUN=0, TAPS_DOWN=taps_down)
    if window is None:
        strides |= dict(B_DEPTH=b.stride(1), B_COLUMN=b.stride(2))
    else:
        (kh, kw), (height, width), samples = window
        line, run = width * samples, (width - kw + 1) * samples
        windows |= dict(KW=kw, TAPS=kh * kw, CHANNEL=height * line, LINE=line, B=samples, RUN=run)
    tiling = dict(BM=cut.bm, BN=cut.bn, BK=cut.bk, num_warps=cut.warps, num_stages=cut.stages)
    grid = (triton.cdiv(rows, cut.bm) * triton.cdiv(columns, cut.bn), jobs, cut.parts)
    jumps = (a.stride(0), b.stride(0), c.stride(0))
    _product[grid](a, b, c, *jumps, **sizes, **strides, **windows, **tiling, PRECISION=precision)
    return c[0] if cut.parts == 1 else c.sum(0)


@torch.library.custom_op("flare::multiply", mutates_args=())
def _multiply(a: Tensor, b: Tensor, precision: str) -> Tensor:
    return launch(a, b, b.shape[2], a.shape[2], precision)


@_multiply.register_fake
def _(a: Tensor, b: Tensor, precision: str) -> Tensor:
    return a.new_empty((a.shape[0], a.shape[1], b.shape[2]))


@torch.library.custom_op("flare::multiply_windows", mutates_args=())
def _multiply_windows(weight: Tensor, x: Tensor, kh: int, kw: int, precision: str) -> Tensor:
    x = x.contiguous()
    _, _, height, width, samples = x.shape
    places = (height - kh + 1) * (width - kw + 1) * samples
    window = Window((kh, kw), (height, width), samples)
    return launch(weight, x, places, weight.shape[2], precision, window=window, taps_down=True)


@_multiply_windows.register_fake
def _(weight: Tensor, x: Tensor, kh: int, kw: int, precision: str) -> Tensor:
    _, _, height, width, samples = x.shape
    return weight.new_empty((weight.shape[0], weight.shape[1], (height - kh + 1) * (width - kw + 1) * samples))


@torch.library.custom_op("flare::window_gradient", mutates_args=())
def _window_gradient(dy: Tensor, x: Tensor, kh: int, kw: int, precision: str) -> Tensor:
    x = x.contiguous()
    _, channels, height, width, samples = x.shape
    window = Window((kh, kw), (height, width), samples)
    return launch(dy, x, channels * kh * kw, dy.shape[2], precision, window=window)


@_window_gradient.register_fake
def _(dy: Tensor, x: Tensor, kh: int, kw: int, precision: str) -> Tensor:
    return dy.new_empty((dy.shape[0], dy.shape[1], x.shape[1] * kh * kw))


@final
class TensorCores:
    """Products by the kernel, where they are large enough and their windows lie one apart; else by PyTorch."""

    def __init__(self, *, tf32: bool = False) -> None:
        self._precision = "tf32" if tf32 else "tf32x3"
        self._plain = Plain()

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """One batched product."""
        if min(a.shape[1], a.shape[2], b.shape[2]) < 16:
            return self._plain.multiply(a, b)
        return _multiply(a, b, self._precision)

    def multiply_windows(self, weight: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """Without columns."""
        if stride != (1, 1):
            return self._plain.multiply_windows(weight, x, kernel, stride)
        return _multiply_windows(weight, x, *kernel, self._precision)

    def window_gradient(self, dy: Tensor, x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
        """Without columns."""
        if stride != (1, 1):
            return self._plain.window_gradient(dy, x, kernel, stride)
        return _window_gradient(dy, x, *kernel, self._precision)
