"""Problem P3: the smallest common finishing time of a set of devices, and the bandwidths that reach it.

    minimise  t   subject to   sum_i b_i(t) <= B

b_i(t) is the least bandwidth with which device i finishes by t (Theorem 3). Each b_i falls strictly and is convex in
t, so at the optimum the band is used up and everybody finishes at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flare.types import Floats
from flare.wireless.rate import (
    bandwidth_and_slope,
    bandwidth_for,
    bare_bandwidth_and_slope,
    bare_upload_s,
    unwarned,
    upload_s,
)

CERTIFIED = 1e-9
"""What an optimal division promises: `band_residual` and `finish_spread` are at most this."""
_EPS = float(np.finfo(np.float64).eps)
_LAST_STEP = 1e-8  # relative change of a bandwidth under which its slope is as good as a new evaluation (error 1e-16)


@dataclass(frozen=True)
class Allocation:
    """A division of the band among devices, with the certificate that it solves P3.

    `band_residual` is |sum of bandwidths - B| / B, where B counts whole blocks alone if there are any. `finish_spread`
    is (last finish - first finish) / last finish. Where devices have deadlines of their own, it is the most by which
    one of them misses the common finish or its own deadline, whichever is earlier. In whole blocks, it is the most by
    which a device with one block fewer would still finish before the last one: at 0 nobody has a block to spare, which
    proves that no division ends sooner (`resource_blocks`). Always relative to the last finish.

    Both are at most `CERTIFIED` for an optimal division, in every cell that `RoundProblem` accepts. An even split
    leaves a spread.
    """

    bandwidth_hz: Floats  # (devices of the set,)
    latency_s: float
    band_residual: float
    finish_spread: float


def optimal_split(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float
) -> Allocation:
    """Solve P3 for one set of devices, all arrays of shape (devices of the set,), not empty; `payload_bits` may be one
    number for all of them."""
    with unwarned():
        split, latency = _newton_split(compute_s, snr_hz, payload_bits, total_bandwidth_hz)
    if split is not None:
        return split
    return _split_between_doubles(compute_s, snr_hz, payload_bits, total_bandwidth_hz, latency)


def _newton_split(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float
) -> tuple[Allocation | None, float]:
    """The division, None where it misses its certificate, and when all finish by it."""
    latency, bandwidth, slope = _common_finish(compute_s, snr_hz, payload_bits, total_bandwidth_hz)
    if np.isfinite(slope).all():
        # The last step of t, too small to change a bandwidth by 1e-8, is taken along the slopes: what is left of the
        # band goes to each device in proportion to -db/dt.
        left_hz = total_bandwidth_hz - bandwidth.sum()
        latency += float(left_hz / slope.sum())
        bandwidth = bandwidth + left_hz * (slope / slope.sum())
        if (bandwidth > 0.0).all():
            split = _bare_certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth)
            if max(split.band_residual, split.finish_spread, abs(latency / split.latency_s - 1.0)) <= CERTIFIED:
                return Allocation(bandwidth, latency, split.band_residual, split.finish_spread), latency
    return None, latency


def optimal_splits(
    compute_s: Floats, snr_hz: Floats, payload_bits: Floats, total_bandwidth_hz: Floats
) -> list[Allocation]:
    """What `optimal_split` finds for each of many sets of equally many devices, to the last bit: `total_bandwidth_hz`
    of shape (sets,), the others of shape (sets, devices of a set), `payload_bits` also (sets, 1).

    The same steps are taken for all sets at once, and every sum runs along one set. Whatever is out of the ordinary
    (an infinite bandwidth, a certificate that is missed) is left to `optimal_split`.
    """
    found: list[Allocation | None] = [None] * len(compute_s)
    work, snr, payload, band = compute_s, snr_hz, payload_bits, total_bandwidth_hz  # of the sets still open
    open_ = np.arange(len(compute_s))
    even = work + upload_s(payload, (band / work.shape[1])[:, None], snr)
    alone = work + upload_s(payload, band[:, None], snr)
    low = np.maximum(even.min(axis=1), alone.max(axis=1))
    high = np.maximum(even.max(axis=1), low)
    t = 0.5 * (low + high)
    for _ in range(200):
        bandwidth, slope = bandwidth_and_slope(payload, t[:, None] - work, snr)
        total, slopes = bandwidth.sum(axis=1), slope.sum(axis=1)
        early = total > band
        low, high = np.where(early, t, low), np.where(early, high, t)
        with np.errstate(invalid="ignore", over="ignore"):
            step = (total / band) * (band - total) / slopes
            still = np.abs(step) * (slope / bandwidth).min(axis=1) < -_LAST_STEP
        regular = np.isfinite(slopes)
        ended = regular & ~(still & (high - low > 2.0 * _EPS * t))
        if ended.any():
            sets = (work[ended], snr[ended], payload[ended], band[ended])
            divided = _last_steps(*sets, t[ended], bandwidth[ended], slope[ended])
            for at, allocation in zip(open_[ended].tolist(), divided, strict=True):
                found[at] = allocation
        on = regular & ~ended
        if not on.any():
            break
        t = np.where((low < t + step) & (t + step < high), t + step, 0.5 * (low + high))
        if not on.all():
            open_, work, snr, payload, band = open_[on], work[on], snr[on], payload[on], band[on]
            t, low, high = t[on], low[on], high[on]
    return [
        optimal_split(compute_s[at], snr_hz[at], payload_bits[at], float(total_bandwidth_hz[at]))
        if one is None
        else one
        for at, one in enumerate(found)
    ]


def _last_steps(
    compute_s: Floats, snr_hz: Floats, payload: Floats, band: Floats, t: Floats, bandwidth: Floats, slope: Floats
) -> list[Allocation | None]:
    """The last step of `optimal_split` for many sets; None where the certificate is missed."""
    left_hz, slopes = band - bandwidth.sum(axis=1), slope.sum(axis=1)
    latency = t + left_hz / slopes
    bandwidth = bandwidth + left_hz[:, None] * (slope / slopes[:, None])
    finish = compute_s + upload_s(payload, bandwidth, snr_hz)
    last, first = finish.max(axis=1), finish.min(axis=1)
    residual, spread = np.abs(bandwidth.sum(axis=1) / band - 1.0), (last - first) / last
    certified = (residual <= CERTIFIED) & (spread <= CERTIFIED) & (np.abs(latency / last - 1.0) <= CERTIFIED)
    certified &= (bandwidth > 0.0).all(axis=1)
    rows = zip(bandwidth, latency.tolist(), residual.tolist(), spread.tolist(), strict=True)
    return [Allocation(*row) if good else None for row, good in zip(rows, certified.tolist(), strict=True)]


def _split_between_doubles(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float, guess_s: float
) -> Allocation:
    """The same where a step of t from one double to the next changes the bandwidths by more than 1e-8, or makes them
    infinite: uploads that are short beside the computing, or an SNR so small that bandwidth hardly matters.

    By bisection t comes to lie between two neighbouring doubles: by the later one the devices need at most the band,
    by the earlier one more. What is left of the band at the later time is dealt out so that nobody gets more than it
    needs at the earlier time: everybody finishes between the two.
    """

    def needed(t: float) -> Floats:
        return bandwidth_for(payload_bits, t - compute_s, snr_hz)

    def too_early(t: float) -> bool:
        return float(needed(t).sum()) > total_bandwidth_hz

    low = high = guess_s if 0.0 < guess_s < np.inf else float(compute_s.max()) or 1.0
    step = 4.0 * _EPS
    while too_early(high):
        low, high, step = high, high * (1.0 + step), 2.0 * step
    while not too_early(low):
        low, high, step = low / (1.0 + step), low, 2.0 * step
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if too_early(middle) else (low, middle)
    at_high, at_low = needed(high), needed(low)
    left_hz = total_bandwidth_hz - float(at_high.sum())
    endless = np.isinf(at_low)  # nothing brings these devices to the earlier time: they can take any bandwidth
    room = endless * at_high if endless.any() else np.maximum(at_low - at_high, 0.0)
    if not room.sum() > 0.0:
        room = at_high
    bandwidth = at_high + left_hz * (room / room.sum())
    return _certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth)


def split_with_due_times(
    compute_s: Floats, snr_hz: Floats, payload_bits: Floats, due_s: Floats, total_bandwidth_hz: float
) -> Allocation:
    """Solve P3 for devices that have deadlines of their own: the least t with  sum_i b_i(min(t, due_i)) <= B.

    Without those deadlines t is at most as late. So whoever is due before that t is held to its own deadline in the
    answer, too: it gets b_i(due_i), and the others divide what is left, by which t only grows. The devices must fit.
    """
    needed = bandwidth_for(payload_bits, due_s - compute_s, snr_hz)
    held = np.zeros(len(due_s), dtype=bool)
    bandwidth, latency = needed, float(due_s.max())
    while not held.all():
        free = ~held
        # The devices fit: that less than this is left is rounding.
        left_hz = max(total_bandwidth_hz - float(needed[held].sum()), 1e-12 * total_bandwidth_hz)
        rest = optimal_split(compute_s[free], snr_hz[free], payload_bits[free], left_hz)
        late = free & (due_s < rest.latency_s)
        if not late.any():
            bandwidth, latency = needed.copy(), rest.latency_s
            bandwidth[free] = rest.bandwidth_hz
            break
        held |= late
    if held.any():
        latency = max(latency, float(due_s[held].max()))
    measured = _certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth)
    finish = compute_s + upload_s(payload_bits, bandwidth, snr_hz)
    spread = float(np.abs(finish - np.minimum(latency, due_s)).max()) / latency
    return Allocation(bandwidth, measured.latency_s, measured.band_residual, spread)


def even_split(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float
) -> Allocation:
    """Give every device of the set the same bandwidth; the slowest one ends the round."""
    bandwidth = np.full(len(compute_s), total_bandwidth_hz / len(compute_s))
    return _certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth)


def _certified(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float, bandwidth_hz: Floats
) -> Allocation:
    """The division with what can be measured of it: its last finish, how much of the band it uses, its spread."""
    with unwarned():
        return _bare_certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth_hz)


def _bare_certified(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float, bandwidth_hz: Floats
) -> Allocation:
    """The same, to be called inside `unwarned`."""
    finish = compute_s + bare_upload_s(payload_bits, bandwidth_hz, snr_hz)
    last = float(finish.max())
    return Allocation(
        bandwidth_hz=bandwidth_hz,
        latency_s=last,
        band_residual=abs(float(bandwidth_hz.sum()) / total_bandwidth_hz - 1.0),
        finish_spread=(last - float(finish.min())) / last,
    )


def _common_finish(
    compute_s: Floats, snr_hz: Floats, payload_bits: float | Floats, total_bandwidth_hz: float
) -> tuple[float, Floats, Floats]:
    """The t with sum_i b_i(t) = B, and b_i and db_i/dt there.

    Newton's method on 1 / sum_i b_i(t), which is nearly straight where the sum itself has a pole, kept inside a
    bracket: an even split is feasible, so its last finish is an upper bound on t and its first finish a lower one;
    no device can finish earlier than with the whole band for itself.
    """
    even = compute_s + bare_upload_s(payload_bits, np.asarray(total_bandwidth_hz / len(compute_s)), snr_hz)
    alone = compute_s + bare_upload_s(payload_bits, np.asarray(total_bandwidth_hz), snr_hz)
    low = max(float(even.min()), float(alone.max()))
    high = max(float(even.max()), low)
    t = 0.5 * (low + high)
    for _ in range(200):
        bandwidth, slope = bare_bandwidth_and_slope(payload_bits, t - compute_s, snr_hz)
        total = float(bandwidth.sum())
        if total > total_bandwidth_hz:
            low = t
        else:
            high = t
        if not total < np.inf:
            t = 0.5 * (low + high)
            if not low < t < high:
                break  # two neighbouring doubles: a bandwidth is infinite at the one, and too little at the other
            continue
        step = (total / total_bandwidth_hz) * (total_bandwidth_hz - total) / float(slope.sum())
        if abs(step) * float((slope / bandwidth).min()) >= -_LAST_STEP or high - low <= 2.0 * _EPS * t:
            break
        t = t + step if low < t + step < high else 0.5 * (low + high)
    return t, bandwidth, slope
