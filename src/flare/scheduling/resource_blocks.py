"""Problem P3 in whole resource blocks: the earliest common finish, and who gets how many blocks.

    minimise  t   subject to   sum_i n_i(t) <= N,     n_i(t) = ceil(b_i(min(t, due_i)) / block_hz)

n_i(t) is the least number of blocks with which device i finishes by t and by its own deadline; it falls in t by steps.
Rounding the bandwidths of the continuous problem does not solve this: rounded up they ask for more blocks than there
are, rounded down they miss the deadline.

A feasible t is brought close to the least one by bisection, and every device gets its n_i there. The blocks that are
left are dealt out one at a time, each to whoever then finishes last. With t the last finish of the result, no device
could spare a block: one fewer, and it would not be done before t, or not by its own deadline. (It got its last block
when it was the last, at a finish of t or later; or it has the least number for a time of t or later.) So any division
that ends before t gives nobody fewer blocks, and to the last device more: it takes at least N + 1 of them. That proves
the division optimal, and `finish_spread` is by how much it is missed.
"""

from __future__ import annotations

import heapq

import numpy as np

from flare.scheduling.bandwidth import Allocation
from flare.types import Floats
from flare.wireless.rate import bandwidth_for, upload_s

_ROUNDING = 1e-12  # a need that is above a whole number of blocks by less than this share is that number
_MAX_HALVINGS = 60


def in_whole_blocks(bandwidth_hz: Floats, block_hz: float) -> Floats:
    """The least numbers of blocks, at least 1, that hold bandwidths; infinite where these are."""
    return np.maximum(np.ceil(bandwidth_hz * ((1.0 - _ROUNDING) / block_hz)), 1.0)


def split_in_blocks(
    compute_s: Floats, snr_hz: Floats, payload_bits: Floats, due_s: Floats, block_hz: float, num_blocks: int
) -> Allocation:
    """Solve P3 in whole blocks for one set of devices, all arrays of shape (devices of the set,). There must be blocks
    enough for all to finish by `due_s`, which is infinite where a device has no deadline of its own."""

    def needed(time_s: float) -> Floats:
        slack_s = np.minimum(time_s, due_s) - compute_s
        return in_whole_blocks(bandwidth_for(payload_bits, slack_s, snr_hz), block_hz)

    high = float(_finish_s(np.ones(len(compute_s)), compute_s, snr_hz, payload_bits, block_hz).max())
    blocks = needed(high)  # one for each, or what it needs by its own deadline
    low = float(compute_s.max())
    for _ in range(_MAX_HALVINGS):
        middle = 0.5 * (low + high)
        if num_blocks - blocks.sum() <= len(blocks) or not low < middle < high:
            break
        asked = needed(middle)
        if asked.sum() <= num_blocks:
            high, blocks = middle, asked
        else:
            low = middle
    blocks = _dealt_out(blocks, num_blocks, compute_s, snr_hz, payload_bits, block_hz)
    return _certified(blocks, num_blocks, compute_s, snr_hz, payload_bits, due_s, block_hz)


def even_blocks(
    compute_s: Floats, snr_hz: Floats, payload_bits: Floats, due_s: Floats, block_hz: float, num_blocks: int
) -> Allocation:
    """Give every device the same number of blocks; those that remain go, one each, to whoever would finish last."""
    each, rest = divmod(num_blocks, len(compute_s))
    blocks = np.full(len(compute_s), float(each))
    finish = _finish_s(blocks, compute_s, snr_hz, payload_bits, block_hz)
    blocks[np.argsort(-finish, kind="stable")[:rest]] += 1.0
    return _certified(blocks, num_blocks, compute_s, snr_hz, payload_bits, due_s, block_hz)


def _finish_s(blocks: Floats, compute_s: Floats, snr_hz: Floats, payload_bits: Floats, block_hz: float) -> Floats:
    return compute_s + upload_s(payload_bits, blocks * block_hz, snr_hz)


def _dealt_out(
    blocks: Floats, num_blocks: int, compute_s: Floats, snr_hz: Floats, payload_bits: Floats, block_hz: float
) -> Floats:
    """With the blocks that are left, each given to whoever finishes last by then."""
    blocks = blocks.copy()
    last_first = [
        (-finish, device)
        for device, finish in enumerate(_finish_s(blocks, compute_s, snr_hz, payload_bits, block_hz).tolist())
    ]
    heapq.heapify(last_first)
    for _ in range(num_blocks - int(blocks.sum())):
        device = last_first[0][1]
        blocks[device] += 1.0
        own = slice(device, device + 1)
        finish = _finish_s(blocks[own], compute_s[own], snr_hz[own], payload_bits[own], block_hz)
        heapq.heapreplace(last_first, (-float(finish[0]), device))
    return blocks


def _certified(
    blocks: Floats,
    num_blocks: int,
    compute_s: Floats,
    snr_hz: Floats,
    payload_bits: Floats,
    due_s: Floats,
    block_hz: float,
) -> Allocation:
    """The division with its last finish, and how far it is from one that is proven."""
    finish = _finish_s(blocks, compute_s, snr_hz, payload_bits, block_hz)
    last = float(finish.max())
    with_one_less = _finish_s(blocks - 1.0, compute_s, snr_hz, payload_bits, block_hz)  # infinite on no block at all
    spare_s = np.where(with_one_less <= due_s, np.maximum(last - with_one_less, 0.0), 0.0)
    return Allocation(
        bandwidth_hz=blocks * block_hz,
        latency_s=last,
        band_residual=abs(float(blocks.sum()) / num_blocks - 1.0),
        finish_spread=float(spare_s.max()) / last,
    )
