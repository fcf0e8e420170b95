"""Updates as they are, and as half-precision numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flare.uplink.blocks import as_bytes, read_numbers
from flare.uplink.codec import Codec, refuse_lost, refuse_not_finite
from flare.uplink.registry import codec

_TOP = 15  # the largest entry is scaled to at least 2^14 and below 2^15, a factor 2 below what float16 can hold
_LARGEST = torch.finfo(torch.float32).max  # it is rounded to 2^128
_EXPONENTS = (-148, 128)  # of float32 numbers, as m 2^e with 1/2 <= m < 1


@codec("none")
@final
@dataclass(frozen=True)
class Plain(Codec):
    """Float32, every bit as it is; infinite entries and such that are not a number are kept too."""

    unbiased = True
    keeps_everything = True

    def bits(self, num_weights: int) -> int:
        """32 a weight."""
        return 32 * num_weights

    def variance(self, num_weights: int) -> float:
        """Nothing is lost."""
        return 0.0

    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The numbers as they lie in memory, little end first."""
        return as_bytes(updates)

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The updates themselves."""
        return updates.clone()

    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Every message of the right length is an update."""
        return read_numbers(messages, torch.float32)


@codec("float16")
@final
@dataclass(frozen=True)
class Float16(Codec):
    """Half precision with one common exponent, so that the largest entry of an update never leaves its range.

    An update is scaled by a power of two that brings its largest entry between 2^14 and 2^15, and rounded to the
    nearest float16; the power takes 16 bits. So every finite update is accepted: entries above 65504, the largest
    float16, are kept like others, and so is an update that is small as a whole, down to float32's denormal numbers.
    Entries below 2^-29 of the largest lose digits, those below 2^-40 of it become zero.
    """

    unbiased = False

    def bits(self, num_weights: int) -> int:
        """16 a weight, and 16 for the exponent."""
        return 16 * num_weights + 16

    def variance(self, num_weights: int) -> float:
        """2^-22 for what is rounded to 11 digits, and (2^-39 of the largest entry)^2 for each that is below."""
        return float(2.0**-22 + num_weights * 2.0**-78)

    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The exponent, then the numbers."""
        exponents = _exponents(updates)
        scaled = _times_power(updates, _TOP - exponents)
        return torch.cat([as_bytes(exponents.to(torch.int16)), as_bytes(scaled.half())], dim=1)

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """Rounded, and not packed."""
        if updates.is_cuda:
            from flare.uplink import kernels  # here: Triton is there where GPUs are

            received, lost = kernels.halves(updates.contiguous(), _exponents(updates), _TOP)
            refuse_lost(lost)
            return received
        refuse_not_finite(updates)
        exponents = _exponents(updates)
        return _times_power(_times_power(updates, _TOP - exponents).half().float(), exponents - _TOP).clamp_(
            -_LARGEST, _LARGEST
        )

    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Refuses exponents that no float32 number has, and numbers that are larger than scaled ones, or not finite."""
        exponents = read_numbers(messages[:, :2], torch.int16)
        scaled = read_numbers(messages[:, 2:], torch.float16).float()
        if not bool(((exponents >= _EXPONENTS[0]) & (exponents <= _EXPONENTS[1])).all()):
            raise ValueError(f"a message has an exponent outside {_EXPONENTS[0]} to {_EXPONENTS[1]}")
        if not bool((scaled.amax() <= 2.0**_TOP) & (scaled.amin() >= -(2.0**_TOP))):
            raise ValueError(f"a message has an entry that is above {2**_TOP}, infinite or not a number")
        return _times_power(scaled, exponents.int() - _TOP).clamp_(-_LARGEST, _LARGEST)


def _exponents(updates: Tensor) -> Tensor:
    """The exponent of the largest entry of each update, int32 (devices, 1)."""
    largest = torch.maximum(updates.amax(dim=1, keepdim=True), -updates.amin(dim=1, keepdim=True))
    return torch.frexp(largest).exponent


def _times_power(numbers: Tensor, exponents: Tensor) -> Tensor:
    """Numbers (devices, weights) times 2^exponent (devices, 1), int32: in two steps, as 2^163 is no float32."""
    half = exponents >> 1
    return (numbers * _power(half)).mul_(_power(exponents - half))


def _power(exponents: Tensor) -> Tensor:
    """2^exponent for -126 to 127, made of its bits: functions that compute powers need not be exact."""
    return ((exponents + 127) << 23).view(torch.float32)
