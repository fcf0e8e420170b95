# mypy: ignore-errors
"""What happens between the matrix products of a stack of jobs, as Triton kernels, for GPUs.

Every kernel works on one job's row, in blocks that follow from the shape of that row alone: a job's numbers are added
up in the same order, whatever the number of jobs. Most of this is reading and writing memory: numbers are read and
written as seldom as can be, and up to four samples at a time, as they lie side by side.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from flare.learning.engine.convolutions import can_pool, convolve, convolve_back
from flare.learning.engine.kernels import TensorCores
from flare.learning.engine.launching import ceil_div, power_of_2, start
from flare.learning.engine.operations import Pool, Windows
from flare.learning.engine.terms import MIN_LENGTH, Anchors

_AT_ONCE = 1024  # numbers in a block of most kernels


@triton.jit
def _in_line(offset, more, in_line: tl.constexpr):
    """The sum of two offsets. The compiler cannot see that so many numbers lie side by side and can be read at once. It
    can be told so only of what is made in the same function."""
    offset = offset + more
    if in_line > 1:
        offset = tl.max_contiguous(tl.multiple_of(offset, in_line), in_line)
    return offset


@triton.jit
def _window_offset(
    place,
    out_line: tl.constexpr,
    samples: tl.constexpr,
    line: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    in_line: tl.constexpr,
):
    """Where in a channel the first number of the window lies whose answer lies at `place` of its channel."""
    in_row = place % out_line
    window = (place // out_line) * (kh * line) + (in_row // samples) * (kw * samples)
    return _in_line(window, in_row % samples, in_line)


@triton.jit
def _finish(
    x,  # (jobs, channels, height, width, samples)
    bias,  # (jobs, channels), not read where there is none
    y,  # (jobs, channels, high, wide, samples)
    which,  # of the same shape, written where there are maxima
    bias_job: tl.constexpr,
    size: tl.constexpr,  # numbers of a job, a channel and a line of the answer
    out_channel: tl.constexpr,
    out_line: tl.constexpr,
    job_size: tl.constexpr,  # and of what is given
    channel_size: tl.constexpr,
    line: tl.constexpr,
    samples: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    average: tl.constexpr,
    has_bias: tl.constexpr,
    relu: tl.constexpr,
    in_line: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < size
    channel = place // out_channel
    if kh * kw == 1:
        value = tl.load(x + job * job_size + place, mask=inside, other=0.0)
    else:
        offset = _window_offset(place % out_channel, out_line, samples, line, kh, kw, in_line)
        x += job * job_size + channel * channel_size + offset
        value = tl.load(x, mask=inside, other=0.0)
        best = tl.zeros((block,), dtype=tl.int32)
        for tap in tl.static_range(1, kh * kw):
            other = tl.load(x + (tap // kw) * line + (tap % kw) * samples, mask=inside, other=0.0)
            if average:
                value += other
            else:
                better = (other > value) | (other != other)
                value = tl.where(better, other, value)
                best = tl.where(better, tap, best)
        if average:
            value /= kh * kw
        else:
            tl.store(which + job * size + place, best.to(tl.uint8), mask=inside)
    if has_bias:
        value += tl.load(bias + job * bias_job + channel, mask=inside, other=0.0)
    if relu:
        value = tl.where(value <= 0.0, 0.0, value)
    tl.store(y + job * size + place, value, mask=inside)


@triton.jit
def _finish_back(
    dy,  # (jobs, channels, high, wide, samples)
    y,  # of the same shape, not read without ReLU
    which,  # of the same shape, not read without maxima
    dx,  # (jobs, channels, height, width, samples), not written where it is dy
    dbias,  # (jobs, channels), not written without a bias
    channels: tl.constexpr,
    out_channel: tl.constexpr,  # numbers of a channel and a line of dy
    out_line: tl.constexpr,
    channel_size: tl.constexpr,  # and of dx
    line: tl.constexpr,
    samples: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    below: tl.constexpr,  # numbers left over at the end of a channel of dx
    average: tl.constexpr,
    has_bias: tl.constexpr,
    relu: tl.constexpr,
    is_pooled: tl.constexpr,
    in_line: tl.constexpr,  # numbers by which the samples can be divided, and a line of dx: 1, 2 or 4
    in_line_of_dx: tl.constexpr,
    block_channels: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    channel = (tl.program_id(0) * block_channels + tl.arange(0, block_channels))[:, None]
    there = channel < channels
    given = job * (channels * out_channel) + channel * out_channel
    target = dx + job * (channels * channel_size) + channel * channel_size
    total = tl.zeros((block_channels, block), dtype=tl.float32)
    # Windows go by the lines of dx, not of dy: what lies side by side there is written at once.
    size: tl.constexpr = (channel_size - below) // kh if is_pooled else out_channel
    for begin in range(0, size, block):
        place = begin + tl.arange(0, block)
        inside = there & (place < size)[None, :]
        if is_pooled:
            column = (place % line) // samples
            has = column // kw < out_line // samples
            if in_line > 1:
                has = tl.max_constancy(has, in_line)
            source = _in_line((place // line) * out_line + (column // kw) * samples, place % samples, in_line)[None, :]
            taken = inside & has[None, :]
        else:
            source, taken = place[None, :], inside
        numbers = tl.load(dy + given + source, mask=taken, other=0.0)
        if relu:
            numbers = tl.where(tl.load(y + given + source, mask=taken, other=0.0) <= 0.0, 0.0, numbers)
        if has_bias:
            total += tl.where((column % kw == 0)[None, :], numbers, 0.0) if is_pooled else numbers
        if is_pooled:
            at = target + _in_line((place // line) * (kh * line), place % line, in_line_of_dx)[None, :]
            if average:
                numbers /= kh * kw
            else:
                best = tl.load(which + given + source, mask=taken, other=0).to(tl.int32) - (column % kw)[None, :]
            for i in tl.static_range(kh):
                part = numbers
                if not average:
                    part = tl.where(best == i * kw, numbers, 0.0)
                tl.store(at + i * line, part, mask=inside)
        elif relu:
            tl.store(target + source, numbers, mask=inside)
    if has_bias:
        channel = tl.program_id(0) * block_channels + tl.arange(0, block_channels)
        tl.store(dbias + job * channels + channel, tl.sum(total, 1), mask=channel < channels)
    if below > 0:
        nothing = tl.zeros((block_channels, block), dtype=tl.float32)
        for begin in range(0, below, block):
            place = (begin + tl.arange(0, block))[None, :]
            tl.store(target + (channel_size - below) + place, nothing, mask=there & (place < below))


@triton.jit(do_not_specialize=["channel_size", "line"])  # a compiler that knew them has divided small ones wrongly
def _add_windows(
    dwindows,  # (jobs, channels, kh, kw, high, wide, samples)
    dx,  # (jobs, channels, height, width, samples)
    channel_size,  # numbers of a channel, a line and a job of dx
    line,
    size: tl.constexpr,
    samples: tl.constexpr,
    channels: tl.constexpr,
    kh: tl.constexpr,
    kw: tl.constexpr,
    step_h: tl.constexpr,
    step_w: tl.constexpr,
    pad_h: tl.constexpr,
    pad_w: tl.constexpr,
    high: tl.constexpr,
    wide: tl.constexpr,
    in_line: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    channel, in_channel = place // channel_size, place % channel_size
    row, in_row = in_channel // line + pad_h, in_channel % line
    column, sample = in_row // samples + pad_w, in_row % samples
    taken: tl.constexpr = high * wide * samples  # numbers of a tap
    dwindows += job * (channels * kh * kw * taken)
    start = channel * (kh * kw * taken) + sample
    total = tl.zeros((block,), dtype=tl.float32)
    for i in tl.static_range(kh):
        top = row - i
        has_row = (place < size) & (top >= 0) & (top < high * step_h)
        if step_h > 1:
            has_row &= top % step_h == 0
            top //= step_h
        of_row = tl.zeros((block,), dtype=tl.float32)
        for j in tl.static_range(kw):
            left = column - j
            has = has_row & (left >= 0) & (left < wide * step_w)
            if step_w > 1:
                has &= left % step_w == 0
                left //= step_w
            offset = _in_line((i * kw + j) * taken + (top * wide + left) * samples, start, in_line)
            of_row += tl.load(dwindows + offset, mask=tl.max_constancy(has, in_line), other=0.0)
        total += of_row
    tl.store(dx + job * size + place, total, mask=place < size)


@triton.jit(do_not_specialize_on_alignment=["labels", "shares"])
def _loss(
    logits,  # (jobs, classes, samples)
    labels,  # (jobs, samples)
    shares,  # (jobs, samples)
    losses,  # (jobs,)
    dlogits,  # (jobs, classes, samples)
    classes: tl.constexpr,
    samples: tl.constexpr,
    block_classes: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(0).to(tl.int64)
    of_class = tl.arange(0, block_classes)[:, None]
    total = tl.zeros((block,), dtype=tl.float32)
    for begin in range(0, samples, block):
        sample = begin + tl.arange(0, block)
        is_sample = sample < samples
        at = job * (classes * samples) + of_class * samples + sample[None, :]
        inside = (of_class < classes) & is_sample[None, :]
        outside = tl.where(of_class < classes, 0.0, float("-inf"))
        values = tl.load(logits + at, mask=inside, other=0.0) + outside
        values -= tl.max(values, 0)[None, :]
        log_probability = values - tl.log(tl.sum(tl.exp(values), 0))[None, :]
        label = tl.load(labels + job * samples + sample, mask=is_sample, other=0)
        share = tl.load(shares + job * samples + sample, mask=is_sample, other=0.0)
        hit = of_class == label[None, :]
        total += tl.sum(tl.where(hit, log_probability, 0.0), 0) * share
        slope = (tl.exp(log_probability) - hit.to(tl.float32)) * share[None, :]
        tl.store(dlogits + at, slope, mask=inside)
    tl.store(losses + job, -tl.sum(total))


@triton.jit(do_not_specialize_on_alignment=["mu", "temperature", "shares"])
def _contrast(
    dz,  # (jobs, features, samples), as the next three
    z,
    z_start,
    z_previous,
    mu,  # (jobs,)
    temperature,  # (jobs,)
    shares,  # (jobs, samples)
    features: tl.constexpr,
    samples: tl.constexpr,
    min_length: tl.constexpr,
    block_features: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(0) * block + tl.arange(0, block)
    size = job * (features * samples)
    own = tl.zeros((block_features, block), dtype=tl.float32)
    first = tl.zeros((block_features, block), dtype=tl.float32)
    last = tl.zeros((block_features, block), dtype=tl.float32)
    near = tl.zeros((block_features, block), dtype=tl.float32)
    far = tl.zeros((block_features, block), dtype=tl.float32)
    for begin in range(0, features, block_features):
        feature = (begin + tl.arange(0, block_features))[:, None]
        at = size + feature * samples + sample[None, :]
        inside = (feature < features) & (sample < samples)[None, :]
        mine = tl.load(z + at, mask=inside, other=0.0)
        one = tl.load(z_start + at, mask=inside, other=0.0)
        other = tl.load(z_previous + at, mask=inside, other=0.0)
        own += mine * mine
        first += one * one
        last += other * other
        near += mine * one
        far += mine * other
    length = tl.sqrt_rn(tl.sum(own, 0))
    divisor = tl.maximum(length, min_length)
    divisor_first = tl.maximum(tl.sqrt_rn(tl.sum(first, 0)), min_length)
    divisor_last = tl.maximum(tl.sqrt_rn(tl.sum(last, 0)), min_length)
    # Divided exactly: where both anchors are the same, nothing is left of them, not even a rounding.
    along = (tl.div_rn(tl.sum(far, 0), divisor_last) - tl.div_rn(tl.sum(near, 0), divisor_first)) / divisor
    cold = tl.load(temperature + job)
    share = tl.load(shares + job * samples + sample, mask=sample < samples, other=0.0)
    slope = tl.load(mu + job) * share / ((1.0 + tl.exp(-along / cold)) * (cold * divisor))
    turn = tl.where(length < min_length, 0.0, along)
    for begin in range(0, features, block_features):
        feature = (begin + tl.arange(0, block_features))[:, None]
        at = size + feature * samples + sample[None, :]
        inside = (feature < features) & (sample < samples)[None, :]
        mine = tl.load(z + at, mask=inside, other=0.0) / divisor[None, :]
        one = tl.div_rn(tl.load(z_start + at, mask=inside, other=0.0), divisor_first[None, :])
        other = tl.div_rn(tl.load(z_previous + at, mask=inside, other=0.0), divisor_last[None, :])
        before = tl.load(dz + at, mask=inside, other=0.0)
        tl.store(dz + at, before + slope[None, :] * (other - one - turn[None, :] * mine), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["indices"])
def _gather(
    samples_of,  # (samples of the data, features)
    labels_of,  # (samples of the data,)
    indices,  # (jobs, samples)
    x,  # (jobs, features, samples)
    labels,  # (jobs, samples)
    features: tl.constexpr,
    samples: tl.constexpr,
    block_features: tl.constexpr,
    block: tl.constexpr,
):
    job = tl.program_id(1).to(tl.int64)
    feature = (tl.program_id(0) * block_features + tl.arange(0, block_features))[:, None]
    for begin in range(0, samples, block):
        sample = begin + tl.arange(0, block)
        index = tl.load(indices + job * samples + sample, mask=sample < samples, other=0)
        inside = (feature < features) & (sample < samples)[None, :]
        numbers = tl.load(samples_of + index[None, :] * features + feature, mask=inside, other=0.0)
        tl.store(x + job * (features * samples) + feature * samples + sample[None, :], numbers, mask=inside)
        if tl.program_id(0) == 0:
            label = tl.load(labels_of + index, mask=sample < samples, other=0)
            tl.store(labels + job * samples + sample, label, mask=sample < samples)


class _Sizes(NamedTuple):
    """Numbers in an activation (jobs, channels, height, width, samples): of a job, a channel and a line."""

    job: int
    channel: int
    line: int


def _sizes(x: Tensor) -> _Sizes:
    samples = x.shape[-1]
    channel = math.prod(x.shape[2:])
    return _Sizes(x.shape[1] * channel, channel, x.shape[3] * samples if x.dim() == 5 else samples)


def _most_in_line(samples: int) -> int:
    return math.gcd(samples, 4)


@final
class Kernels(TensorCores):
    """Operations by kernels of our own."""

    def writes_windows(self, windows: Windows) -> bool:
        """Where they do not lie one apart."""
        return windows.stride != (1, 1)

    def convolve(
        self, weight: Tensor, x: Tensor, windows: Windows, bias: Tensor | None, pool: Pool | None, relu: bool
    ) -> tuple[Tensor, Tensor | None]:
        """In one pass where the windows lie one apart, with the maximum where it is of 2 x 2."""
        if windows.stride == (1, 1) and can_pool(pool):
            return convolve(weight, x, windows, self._precision, bias=bias, pool=pool, relu=relu)
        y = self.multiply_windows(weight, x, windows.kernel, windows.stride)
        y = y.view(*y.shape[:2], *windows.out_side, x.shape[-1])
        return (y, None) if bias is None and pool is None and not relu else self.finish(y, bias, pool, relu)

    def convolve_back(self, weight: Tensor, dy: Tensor, windows: Windows) -> Tensor:
        """In one pass where the windows lie one apart."""
        if windows.stride == (1, 1):
            return convolve_back(weight, dy, windows, self._precision)
        dwindows = self.multiply(weight.transpose(1, 2), dy.flatten(2))
        return self.add_windows(dwindows, windows, dy.shape[-1])

    def add_windows(self, dwindows: Tensor, windows: Windows, samples: int) -> Tensor:
        """In one pass: every place gathers what belongs to it."""
        (kh, kw), (pad_h, pad_w), (high, wide) = windows.kernel, windows.padding, windows.out_side
        side = (windows.side[0] - 2 * pad_h, windows.side[1] - 2 * pad_w)
        jobs, channels = len(dwindows), dwindows.shape[1] // (kh * kw)
        dx = torch.empty((jobs, channels, *side, samples), device=dwindows.device, dtype=dwindows.dtype)
        size, channel, line = _sizes(dx)
        cut = {"size": size, "samples": samples, "channels": channels, "kh": kh, "kw": kw}
        cut |= {"step_h": windows.stride[0], "step_w": windows.stride[1], "pad_h": pad_h, "pad_w": pad_w}
        cut |= {"high": high, "wide": wide, "in_line": _most_in_line(samples), "block": _AT_ONCE // 2}
        start(_add_windows, (ceil_div(size, _AT_ONCE // 2), jobs), dwindows, dx, channel, line, **cut)
        return dx

    def finish(self, x: Tensor, bias: Tensor | None, pool: Pool | None, relu: bool) -> tuple[Tensor, Tensor | None]:
        """In one pass."""
        x = x.contiguous()
        shape = x.shape if pool is None else (*x.shape[:2], *pool.out_side, x.shape[-1])
        y = torch.empty(shape, device=x.device, dtype=x.dtype)
        which = None
        if pool is not None and not pool.average:
            which = torch.empty(shape, device=x.device, dtype=torch.uint8)
        given, made, jobs = _sizes(x), _sizes(y), len(x)
        kh, kw = (1, 1) if pool is None else pool.kernel
        cut = {"bias_job": 0 if bias is None else bias.stride(0), "size": made.job, "out_channel": made.channel}
        cut |= {"out_line": made.line, "job_size": given.job, "channel_size": given.channel, "line": given.line}
        cut |= {"samples": x.shape[-1], "kh": kh, "kw": kw, "average": pool is not None and pool.average}
        cut |= {"has_bias": bias is not None, "relu": relu, "in_line": _most_in_line(x.shape[-1]), "block": _AT_ONCE}
        tensors = (x, x if bias is None else bias, y, x if which is None else which)
        start(_finish, (ceil_div(made.job, _AT_ONCE), jobs), *tensors, **cut)
        return y, which

    def finish_back(
        self, dy: Tensor, y: Tensor | None, which: Tensor | None, pool: Pool | None, *, has_bias: bool
    ) -> tuple[Tensor, Tensor | None]:
        """In one pass; nothing is written where the gradient stays as it is."""
        dy = dy.contiguous()
        jobs, channels, samples = *dy.shape[:2], dy.shape[-1]
        dbias = torch.empty((jobs, channels), device=dy.device, dtype=dy.dtype) if has_bias else None
        dx, kernel, below = dy, (1, 1), 0
        if pool is not None:
            dx = torch.empty((jobs, channels, *pool.side, samples), device=dy.device, dtype=dy.dtype)
            kernel = pool.kernel
            below = (pool.side[0] - pool.out_side[0] * kernel[0]) * pool.side[1] * samples
        elif y is not None:
            dx = torch.empty_like(dy)
        if dx is dy and dbias is None:
            return dy, None
        given, made = _sizes(dy), _sizes(dx)
        block = _block((made.channel - below) // kernel[0])
        several = min(_AT_ONCE // block, power_of_2(channels))
        cut = {"channels": channels, "out_channel": given.channel, "out_line": given.line, "channel_size": made.channel}
        cut |= {"line": made.line, "samples": samples, "kh": kernel[0], "kw": kernel[1], "below": below}
        cut |= {"average": which is None, "has_bias": has_bias, "relu": y is not None, "is_pooled": pool is not None}
        cut |= {"in_line": _most_in_line(samples), "in_line_of_dx": _most_in_line(made.line)}
        cut |= {"block_channels": several, "block": block}
        tensors = (dy, dy if y is None else y, dy if which is None else which, dx, dy if dbias is None else dbias)
        start(_finish_back, (ceil_div(channels, several), jobs), *tensors, **cut)
        return dx, dbias

    def cross_entropy(self, logits: Tensor, labels: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """In one pass."""
        jobs, classes, samples = logits.shape
        logits, labels, shares = logits.contiguous(), labels.contiguous(), shares.contiguous()
        losses = torch.empty(jobs, device=logits.device, dtype=logits.dtype)
        dlogits = torch.empty_like(logits)
        several = power_of_2(classes)
        block = min(power_of_2(samples), max(1, 4 * _AT_ONCE // several))
        sizes = {"classes": classes, "samples": samples, "block_classes": several, "block": block}
        start(_loss, (jobs,), logits, labels, shares, losses, dlogits, **sizes)
        return losses, dlogits

    def with_contrast(self, dz: Tensor, z: Tensor, anchors: Anchors, shares: Tensor) -> Tensor:
        """Written into dz."""
        jobs, features, samples = dz.shape
        z_start, z_previous = anchors.z_start.contiguous(), anchors.z_previous.contiguous()
        tensors = (dz, z.contiguous(), z_start, z_previous, anchors.mu, anchors.temperature, shares.contiguous())
        block = min(16, power_of_2(samples))
        sizes = {"features": features, "samples": samples, "min_length": MIN_LENGTH}
        sizes |= {"block_features": _AT_ONCE // block, "block": block}
        start(_contrast, (ceil_div(samples, block), jobs), *tensors, **sizes)
        return dz


def _block(size: int) -> int:
    """How many numbers of a channel at once: as many as can be, up to a limit, with few places left empty."""
    block = _AT_ONCE
    while block > 64 and -(-size // block) * block > 1.15 * size:
        block //= 2
    return block


def gather(samples_of: Tensor, labels_of: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The samples (jobs, ..., samples) and labels (jobs, samples) that have the indices (jobs, samples)."""
    (jobs, samples), shape = indices.shape, samples_of.shape[1:]
    features = math.prod(shape)
    x = torch.empty((jobs, *shape, samples), device=samples_of.device, dtype=samples_of.dtype)
    labels = torch.empty((jobs, samples), device=samples_of.device, dtype=labels_of.dtype)
    block, several = min(64, power_of_2(samples)), min(64, power_of_2(features))
    sizes = {"features": features, "samples": samples, "block_features": several, "block": block}
    grid = (ceil_div(features, several), jobs)
    start(_gather, grid, samples_of.contiguous(), labels_of.contiguous(), indices.contiguous(), x, labels, **sizes)
    return x, labels
