"""The largest entries alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flare.config.setting import check, setting
from flare.uplink.blocks import as_bytes, read_numbers
from flare.uplink.codec import Codec, refuse_lost
from flare.uplink.places import layout, pack_places, unpack_places
from flare.uplink.registry import codec

_SAMPLE = 4096  # entries from which it is guessed how large the last one that is sent may be
_SURPLUS = 1.2
_INFINITE = 0x7F800000  # the size of infinity; what is not a number has a larger one


@codec("topk")
@final
@dataclass(frozen=True)
class TopK(Codec):
    """The entries that are largest in absolute value, as they are, and zeros for the others; with error feedback.

    Of n weights k = ceil(share n) are sent: their values in float32, then their places (`places`), in a number of bits
    that n and the share alone decide. Of equal sizes the first are sent. Every finite update is accepted, and zeros and
    denormal numbers that are sent are kept to the bit (-0 too).
    """

    share: float = setting(0.01, "share of the entries that are sent", above=0.0, at_most=1.0)
    error_feedback: bool = setting(True, "whether a device adds what was lost to its next update")

    unbiased = False

    def __post_init__(self) -> None:
        check(self, "")

    def num_sent(self, num_weights: int) -> int:
        """How many entries are sent: at least one."""
        return max(1, min(num_weights, math.ceil(round(self.share * num_weights, 6))))  # 0.07 x 100 is 7, not 8

    def bits(self, num_weights: int) -> int:
        """32 for the value of each entry that is sent, and what the places take, filled up to whole bytes."""
        sent = self.num_sent(num_weights)
        return 32 * sent + 8 * layout(num_weights, sent).size

    def variance(self, num_weights: int) -> float:
        """1 - k / n, reached where all entries are of one size."""
        return 1.0 - self.num_sent(num_weights) / num_weights

    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The values, then the places."""
        places = largest_places(updates, self.num_sent(updates.shape[1]))
        return torch.cat([as_bytes(updates.gather(1, places)), *pack_places(places, updates.shape[1])], dim=1)

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The largest entries in their places."""
        count = self.num_sent(updates.shape[1])
        if updates.is_cuda:
            from flare.uplink import kernels  # here: Triton is there where GPUs are

            updates = updates.contiguous()
            received, lost = kernels.largest(updates, last_sizes(updates.view(torch.int32), count), count)
            refuse_lost(lost)
            return received
        sizes = sizes_of(updates)
        refuse_lost(sizes.amax(dim=1) >= _INFINITE)
        least = last_sizes(sizes, count)
        received = torch.empty_like(updates)
        for update, last, into in zip(updates, least, received, strict=True):
            _at_least(update, int(last), into)
        for row, places in _left_out(sizes, least, count):
            received[row, places] = 0.0
        return received

    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Refuses values that are not finite, and places that are not k different ones in ascending order."""
        sent = self.num_sent(num_weights)
        values = read_numbers(messages[:, : 4 * sent], torch.float32)
        if not bool(torch.isfinite(values).all()):
            raise ValueError("a message has an entry that is infinite or not a number")
        places = unpack_places(messages[:, 4 * sent :], num_weights, sent)
        return torch.zeros(len(messages), num_weights, device=messages.device).scatter_(1, places, values)


def largest_places(updates: Tensor, count: int) -> Tensor:
    """The places of the `count` entries of each row that are largest in absolute value, ascending: (devices, count).

    Of equal sizes the first are taken.
    """
    return largest_entries(updates, count).nonzero()[:, 1].view(len(updates), count)


def largest_entries(updates: Tensor, count: int) -> Tensor:
    """Which entries those are, (devices, weights)."""
    sizes = sizes_of(updates)
    least = last_sizes(sizes, count)
    taken = sizes >= least
    for row, places in _left_out(sizes, least, count):
        taken[row, places] = False
    return taken


def _left_out(sizes: Tensor, least: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
    """Where entries of the last size that is taken are more than are taken: the row, and the places of the surplus."""
    large = sizes >= least
    taken = large.sum(1).tolist() if large.is_cuda else [np.count_nonzero(row) for row in large.numpy()]
    for row in (row for row, number in enumerate(taken) if number > count):
        equal = (sizes[row] == least[row]).nonzero()[:, 0]
        yield row, equal[count - taken[row] :]


def _at_least(update: Tensor, least: int, out: Tensor) -> None:
    """Write an update (weights,) with zeros for the entries whose size is below `least`."""
    if least == 0:
        out.copy_(update)
        return
    below = torch.tensor(least - 1, dtype=torch.int32).view(torch.float32).item()  # the next smaller size
    torch.ops.aten.hardshrink.out(update, below, out=out)


def sizes_of(updates: Tensor) -> Tensor:
    """Whole numbers in the order of the absolute values of entries: their bits but for the sign, int32."""
    return updates.view(torch.int32) & 0x7FFFFFFF


def last_sizes(sizes: Tensor, count: int) -> Tensor:
    """The `count`-th largest number of each row, (devices, 1); on a GPU, sign bits are not looked at."""
    if sizes.is_cuda:
        from flare.uplink.nth_largest import nth_largest

        return nth_largest(sizes, count)
    found = [_last_size(row, count) for row in sizes.numpy()]
    return torch.tensor(found, dtype=torch.int32).unsqueeze(1)


def _last_size(sizes: npt.NDArray[np.int32], count: int) -> int:
    """The `count`-th largest of some numbers.

    Few of them can be it: those that are at least as large as a guess, made from a few of them, if they are enough.
    """
    few = np.sort(sizes[:: max(1, len(sizes) // _SAMPLE)])
    guess = few[max(0, len(few) - 1 - int(_SURPLUS * count * len(few) / len(sizes)) - 8)]
    candidates = np.compress(sizes >= guess, sizes)  # as sizes[...], four times as fast
    if len(candidates) < count:  # the few were not like the others
        candidates = sizes
    return int(np.partition(candidates, len(candidates) - count)[len(candidates) - count])
