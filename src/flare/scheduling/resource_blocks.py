"""Problem P3 in whole resource blocks: the earliest common finish, and who gets how many blocks.

    minimise  t   subject to   sum_i n_i(t) <= N,     n_i(t) = ceil(b_i(min(t, due_i)) / block_hz)

n_i(t) is the least number of blocks with which device i finishes by t and by its own deadline; it falls in t by steps.
Rounding the bandwidths of the continuous problem does not solve this: rounded up they ask for more blocks than there
are, rounded down they miss the deadline.

A feasible t is brought close to the least one by bisection, and every device gets its n_i there. The blocks that are
left, at most one a device, are dealt out one at a time, each to whoever then finishes last. With t the last finish of
the result, no device could spare a block: one fewer, and it would not be done before t, or not by its own deadline. (It
got its last block when it was the last, at a finish of t or later; or it has the least number for a time of t or
later.) So any division that ends before t gives nobody fewer blocks, and to the last device more: it takes at least
N + 1 of them. That proves the division optimal, and `finish_spread` is by how much it is missed.

More blocks are left where doubles are too coarse for b_i: an upload is negligible beside computing, or the rate hardly
grows with the bandwidth. There `_of_counts` bisects on the numbers of blocks instead. It finds two neighbouring doubles
such that N blocks are enough by the later, t, and not by the earlier; by both it knows the least numbers. Whoever has
at most the number for the earlier could not be done before t with one block fewer: the division is optimal as before,
and the blocks that are left, fewer than would make the round end earlier, go where numbers are smallest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

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

    def finish_s(blocks: Floats) -> Floats:
        return _finish_s(blocks, compute_s, snr_hz, payload_bits, block_hz)

    high = float(finish_s(np.ones(len(compute_s))).max())
    low = float(compute_s.max())
    least = np.where(np.isinf(due_s), 1.0, needed(math.inf))  # one for each, or what it needs by its own deadline
    blocks = least
    for _ in range(_MAX_HALVINGS):
        middle = 0.5 * (low + high)
        if num_blocks - blocks.sum() <= len(blocks) or not low < middle < high:
            break
        asked = needed(middle)
        if asked.sum() <= num_blocks:
            high, blocks = middle, asked
        else:
            low = middle
    left = num_blocks - int(blocks.sum())
    if left > len(blocks):
        blocks = _of_counts(least, blocks, num_blocks, finish_s, float(compute_s.max()), low)
    else:
        blocks = _dealt_out(blocks, left, compute_s, snr_hz, payload_bits, block_hz)
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
    blocks: Floats, left: int, compute_s: Floats, snr_hz: Floats, payload_bits: Floats, block_hz: float
) -> Floats:
    """With the blocks that are left, each given to whoever finishes last by then."""
    blocks = blocks.copy()
    last_first = [
        (-finish, device)
        for device, finish in enumerate(_finish_s(blocks, compute_s, snr_hz, payload_bits, block_hz).tolist())
    ]
    heapq.heapify(last_first)
    for _ in range(left):
        device = last_first[0][1]
        blocks[device] += 1.0
        own = slice(device, device + 1)
        finish = _finish_s(blocks[own], compute_s[own], snr_hz[own], payload_bits[own], block_hz)
        heapq.heapreplace(last_first, (-float(finish[0]), device))
    return blocks


def _of_counts(
    least: Floats,
    enough: Floats,
    num_blocks: int,
    finish_s: Callable[[Floats], Floats],
    computed_s: float,
    first_try_s: float,
) -> Floats:
    """The optimal numbers of blocks, at least `least`, by bisecting on them.

    `enough` is a division that leaves blocks over, `finish_s` says when devices finish with numbers of blocks,
    `computed_s` when the last of them has computed, and `first_try_s` is near the wanted time.
    """

    def needed(time_s: float, below: Floats, above: Floats) -> Floats:
        """The least numbers with which devices finish by a time: more than `below`, and at most `above`."""
        while (above - below > 1.0).any():
            middle = np.ceil(0.5 * (below + above))
            in_time = finish_s(middle) <= time_s
            below, above = np.where(in_time, below, middle), np.where(in_time, middle, above)
        return above

    low, high = math.nextafter(computed_s, -math.inf), float(finish_s(enough).max())
    few = needed(high, least - 1.0, enough)
    many = needed(low, few - 1.0, np.full(len(few), num_blocks + 1.0))  # more than there are: the last has not computed
    middle = min(first_try_s, math.nextafter(high, -math.inf))
    while low < middle < high:
        asked = needed(middle, few - 1.0, many)
        if asked.sum() <= num_blocks:
            high, few = middle, asked
        else:
            low, many = middle, asked
        middle = 0.5 * (low + high)
    return _levelled(few, many, num_blocks)


def _levelled(few: Floats, many: Floats, num_blocks: int) -> Floats:
    """Numbers of blocks between `few` and `many`, which are too many in all: as equal as these let them be."""
    low, high = 0, num_blocks + 1
    while high - low > 1:
        level = (low + high) // 2
        if np.clip(level, few, many).sum() <= num_blocks:
            low = level
        else:
            high = level
    blocks: Floats = np.clip(float(low), few, many)
    more = np.flatnonzero(np.clip(float(high), few, many) > blocks)
    blocks[more[: num_blocks - int(blocks.sum())]] += 1.0
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
