"""Problem P3: the smallest common finishing time of a set of devices, and the bandwidths that reach it.

    minimise  t   subject to   sum_i b_i(t) <= B

b_i(t) is the least bandwidth with which device i finishes by t (Theorem 3). Each b_i falls strictly and is convex in
t, so at the optimum the band is used up and everybody finishes at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flare.types import Floats
from flare.wireless.rate import bandwidth_and_slope, upload_s

_EPS = float(np.finfo(np.float64).eps)
_LAST_STEP = 1e-8  # relative change of a bandwidth under which its slope is as good as a new evaluation (error 1e-16)


@dataclass(frozen=True)
class Allocation:
    """A division of the band among devices, with the certificate that it solves P3.

    `band_residual` is |sum of bandwidths - B| / B and `finish_spread` is (last finish - first finish) / last finish;
    both are at most 1e-9 for an optimal division. An even split leaves a spread.
    """

    bandwidth_hz: Floats  # (devices of the set,)
    latency_s: float
    band_residual: float
    finish_spread: float


def optimal_split(compute_s: Floats, snr_hz: Floats, payload_bits: float, total_bandwidth_hz: float) -> Allocation:
    """Solve P3 for one set of devices, all arrays of shape (devices of the set,), not empty.

    On a band so wide, or with channels so weak, that the SNR is under about 1e-12, doubles cannot tell what bandwidth
    a device needs, and more bandwidth carries no more: there the band is split evenly.
    """
    latency, bandwidth, slope = _common_finish(compute_s, snr_hz, payload_bits, total_bandwidth_hz)
    if not np.isfinite(slope).all():
        return even_split(compute_s, snr_hz, payload_bits, total_bandwidth_hz)
    # The last step of t, too small to change a bandwidth by 1e-8, is taken along the slopes: what is left of the band
    # goes to each device in proportion to -db/dt. This also uses up what a double's steps in t cannot express.
    share = slope / slope.sum()
    left_hz = total_bandwidth_hz - bandwidth.sum()
    latency += float(left_hz / slope.sum())
    bandwidth = bandwidth + left_hz * share
    if not (bandwidth > 0.0).all():
        return even_split(compute_s, snr_hz, payload_bits, total_bandwidth_hz)
    return _certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth, latency)


def even_split(compute_s: Floats, snr_hz: Floats, payload_bits: float, total_bandwidth_hz: float) -> Allocation:
    """Give every device of the set the same bandwidth; the slowest one ends the round."""
    bandwidth = np.full(len(compute_s), total_bandwidth_hz / len(compute_s))
    finish = compute_s + upload_s(payload_bits, bandwidth, snr_hz)
    return _certified(compute_s, snr_hz, payload_bits, total_bandwidth_hz, bandwidth, float(finish.max()))


def _certified(
    compute_s: Floats,
    snr_hz: Floats,
    payload_bits: float,
    total_bandwidth_hz: float,
    bandwidth_hz: Floats,
    latency_s: float,
) -> Allocation:
    finish = compute_s + upload_s(payload_bits, bandwidth_hz, snr_hz)
    last = float(finish.max())
    return Allocation(
        bandwidth_hz=bandwidth_hz,
        latency_s=latency_s,
        band_residual=abs(float(bandwidth_hz.sum()) / total_bandwidth_hz - 1.0),
        finish_spread=(last - float(finish.min())) / last,
    )


def _common_finish(
    compute_s: Floats, snr_hz: Floats, payload_bits: float, total_bandwidth_hz: float
) -> tuple[float, Floats, Floats]:
    """The t with sum_i b_i(t) = B, and b_i and db_i/dt there.

    Newton's method on 1 / sum_i b_i(t), which is nearly straight where the sum itself has a pole, kept inside a
    bracket: an even split is feasible, so its last finish is an upper bound on t and its first finish a lower one;
    no device can finish earlier than with the whole band for itself.
    """
    even = compute_s + upload_s(payload_bits, np.asarray(total_bandwidth_hz / len(compute_s)), snr_hz)
    alone = compute_s + upload_s(payload_bits, np.asarray(total_bandwidth_hz), snr_hz)
    low = max(float(even.min()), float(alone.max()))
    high = max(float(even.max()), low)
    t = 0.5 * (low + high)
    for _ in range(200):
        bandwidth, slope = bandwidth_and_slope(payload_bits, t - compute_s, snr_hz)
        total = float(bandwidth.sum())
        if total > total_bandwidth_hz:
            low = t
        else:
            high = t
        if not total < np.inf:
            t = 0.5 * (low + high)
            continue
        step = (total / total_bandwidth_hz) * (total_bandwidth_hz - total) / float(slope.sum())
        if abs(step) * float((slope / bandwidth).min()) >= -_LAST_STEP or high - low <= 2.0 * _EPS * t:
            break
        t = t + step if low < t + step < high else 0.5 * (low + high)
    return t, bandwidth, slope
