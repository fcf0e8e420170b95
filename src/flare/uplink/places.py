"""Which k of n places are taken, in a number of bytes that is known beforehand.

Three ways, and n and k alone decide for the shortest:

    nothing       all places are taken
    a bitmap      n bits
    Elias-Fano    the l low bits of each place, ascending, and the high bits h_1 <= h_2 <= ... as a row of
                  k + floor((n - 1) / 2^l) bits in which bit h_i + i - 1 is set: about 2 + log2(n / k) bits a place,
                  half a bit more than the shortest code takes on average, and the same for all updates
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.uplink import packing

_MAX_LOW = 31


@dataclass(frozen=True)
class Layout:
    """How the places are written: with `low` bits each and a row of `row` bits, `size` bytes in all.

    A bitmap has low = -1 and row = n.
    """

    size: int
    low: int
    row: int


def layout(num_places: int, taken: int) -> Layout:
    """The shortest way to say which `taken` of the places are taken."""
    if taken == num_places:
        return Layout(0, -1, 0)
    ways = [Layout(packing.packed_bytes(num_places, 1), -1, num_places)]
    for low in range(_MAX_LOW + 1):
        row = taken + ((num_places - 1) >> low)
        ways.append(Layout(packing.packed_bytes(taken, low) + packing.packed_bytes(row, 1), low, row))
    return min(ways, key=lambda way: way.size)  # of equals the first: the bitmap, then few low bits


def pack_places(places: Tensor, num_places: int) -> list[Tensor]:
    """Parts of messages, uint8 (devices, bytes) each, of places (devices, taken), int64 and strictly ascending."""
    devices, taken = places.shape
    way = layout(num_places, taken)
    if way.size == 0:
        return []
    bits = torch.zeros(devices, way.row, dtype=torch.uint8, device=places.device)
    if way.low < 0:
        return packing.pack(bits.scatter_(1, places, 1), 1)
    order = torch.arange(taken, device=places.device)
    row = bits.scatter_(1, (places >> way.low) + order, 1)
    return [*packing.pack(places & ((1 << way.low) - 1), way.low), *packing.pack(row, 1)]


def unpack_places(messages: Tensor, num_places: int, taken: int) -> Tensor:
    """The places (devices, taken), int64; ValueError where they are not so many, not ascending or not below n."""
    way = layout(num_places, taken)
    order = torch.arange(taken, device=messages.device)
    if way.size == 0:
        return order.expand(len(messages), taken)
    low_bytes = packing.packed_bytes(taken, max(way.low, 0))
    row = packing.unpack(messages[:, low_bytes:], way.row, 1)
    if not bool((row.sum(1, dtype=torch.int64) == taken).all()):
        raise ValueError(f"a message does not name {taken} entries")
    at = row.nonzero()[:, 1].view(len(messages), taken)
    if way.low < 0:
        return at
    places = ((at - order) << way.low) + packing.unpack(messages, taken, way.low)
    if not bool((places[:, -1] < num_places).all() and (places.diff(dim=1) > 0).all()):
        raise ValueError(f"a message names entries that are not ascending, or not below {num_places}")
    return places
