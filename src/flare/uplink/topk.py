"""The largest entries alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flare.config.setting import check, setting
from flare.uplink.blocks import as_bytes, read_numbers
from flare.uplink.codec import Codec
from flare.uplink.places import layout, pack_places, unpack_places
from flare.uplink.registry import codec

_HALF = 16  # bits of a float32 that are looked at in each of two passes
_ABOVE = 1 << _HALF  # stands for all that is larger than the numbers of the second pass


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

    Of equal sizes the first are taken. The last size that is taken is found by counting the upper halves of all
    numbers, then the lower halves of the few that are not below by their upper half.
    """
    sizes = updates.abs().view(torch.int32)  # of floats that are not negative, the order is that of their bits
    upper = sizes >> _HALF
    if len(sizes) > 1:
        upper = upper + (torch.arange(len(sizes), device=sizes.device) << _HALF).unsqueeze(1)
    begin = _kth_largest(upper, len(sizes), 1 << _HALF, count) << _HALF
    rows, places = (sizes >= begin.unsqueeze(1)).nonzero().unbind(1)  # (candidates,)
    within = (sizes[rows, places] - begin[rows]).clamp_max_(_ABOVE)
    cut = _kth_largest(within + rows * (_ABOVE + 1), len(sizes), _ABOVE + 1, count)[rows]
    larger, equal = within > cut, within == cut
    wanted = count - torch.bincount(rows[larger], minlength=len(sizes))
    ties = torch.bincount(rows[equal], minlength=len(sizes))
    order = equal.cumsum(0) - (ties.cumsum(0) - ties)[rows]  # 1 for the first tie of a row, 2 for the next, ...
    return places[larger | (equal & (order <= wanted[rows]))].view(len(sizes), count)


def _kth_largest(numbers: Tensor, rows: int, size: int, k: int) -> Tensor:
    """The k-th largest number of each row, (rows,); a number x below `size` of row r is given as r size + x."""
    counts = torch.bincount(numbers.flatten(), minlength=rows * size).view(rows, size)
    among_last = counts.flip(1).cumsum(1)  # (rows, size): how many numbers are in the last 1, 2, ... buckets
    return size - 1 - (among_last < k).sum(1, dtype=torch.int32)
