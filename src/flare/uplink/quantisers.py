"""Codecs that round the entries of a block to a few levels at random: `qsgd` and `ternary`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, final

import torch
from torch import Tensor

from flare.config.option import Limits
from flare.config.setting import check, setting
from flare.uplink import blocks as of_blocks
from flare.uplink import packing, rounding
from flare.uplink.codec import Codec
from flare.uplink.registry import codec

_SHARED = Annotated[int, "entries that share a scale", Limits(at_least=1, at_most=of_blocks.MAX_BLOCK)]


@codec("qsgd")
def qsgd(
    *,
    bits: Annotated[int, "bits a weight, without the scales", Limits(at_least=2, at_most=16)] = 4,
    block: _SHARED = of_blocks.BLOCK,
) -> Codec:
    """FedPAQ's quantiser: entries rounded at random to 2^(bits - 1) - 1 levels a side, scaled by block."""
    return Qsgd(bits, block)


@final
@dataclass(frozen=True)
class Qsgd(Codec):
    """Entries rounded at random to s = 2^(bits - 1) - 1 levels a side, scaled by block.

        Q_j = scale l_j / s,     l_j = floor(s x_j / scale) + Bernoulli(rest)

    The scale is the largest absolute entry of the block, in float32: that entry is kept to the bit, and no other leaves
    the range. (QSGD's own scale, the 2-norm of the whole update, is larger, and with it the noise.) A message has the
    scales, then the numbers l + s, `bits` each; 2 s + 1 stands for nothing.

    Every finite update is accepted, zeros and denormal numbers too; zeros stay zeros. In float32, and as probabilities
    are multiples of 2^-24, |E Q_j - x_j| is up to 2^-21 of x_j, 2^-22 of a level and the smallest denormal number.
    """

    bits_per_weight: int = setting(4, "bits a weight, without the scales", at_least=2, at_most=16)
    block: int = setting(of_blocks.BLOCK, "entries that share a scale", at_least=1, at_most=of_blocks.MAX_BLOCK)

    unbiased = True
    draws = True

    def __post_init__(self) -> None:
        check(self, "")

    @property
    def levels(self) -> int:
        """s, the levels a side beside zero."""
        return int(2 ** (self.bits_per_weight - 1) - 1)

    def bits(self, num_weights: int) -> int:
        """`bits_per_weight` a weight and 32 for the scale of each block, filled up to whole bytes."""
        codes = packing.packed_bytes(num_weights, self.bits_per_weight)
        return 32 * of_blocks.num_blocks(num_weights, self.block) + 8 * codes

    def variance(self, num_weights: int) -> float:
        """Reached by a block with one large entry and all others alike (`rounding.variance_bound`)."""
        return rounding.variance_bound(of_blocks.largest_block(num_weights, self.block), self.levels)

    def expected_error(self, updates: Tensor) -> Tensor:
        """E|Q(x) - x|^2 / |x|^2 of these updates (devices, weights): what `variance` bounds for all."""
        return rounding.expected_error(updates, self.block, self.levels)

    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The scales, then the levels."""
        scales, codes = rounding.quantise(updates, keys, self.block, self.levels)
        return torch.cat([of_blocks.as_bytes(scales), *packing.pack(codes, self.bits_per_weight)], dim=1)

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """Rounded, and not packed."""
        return rounding.arrive(updates, keys, self.block, self.levels)

    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Refuses scales that are none, and a number above 2 s."""
        blocks = of_blocks.num_blocks(num_weights, self.block)
        scales = of_blocks.read_scales(messages, blocks)
        codes = packing.unpack(messages[:, 4 * blocks :], num_weights, self.bits_per_weight)
        if bool((codes > 2 * self.levels).any()):
            raise ValueError(f"a message has the number {2 * self.levels + 1}, which stands for no level")
        return rounding.restore(codes, scales, self.block, self.levels)


@codec("ternary")
@final
@dataclass(frozen=True)
class Ternary(Codec):
    """TernGrad's quantiser: every entry is -scale, 0 or scale at random, five of them in a byte (1.6 bits a weight).

    What is drawn is what `qsgd` with 2 bits draws, in fewer bytes; what is accepted is the same. The scale is by block,
    TernGrad's by layer, and nothing is clipped.
    """

    block: int = setting(of_blocks.BLOCK, "entries that share a scale", at_least=1, at_most=of_blocks.MAX_BLOCK)

    unbiased = True
    draws = True

    def __post_init__(self) -> None:
        check(self, "")

    def bits(self, num_weights: int) -> int:
        """8 for five weights and 32 for the scale of each block."""
        return 32 * of_blocks.num_blocks(num_weights, self.block) + 8 * packing.trit_bytes(num_weights)

    def variance(self, num_weights: int) -> float:
        """(sqrt(d) - 1) / 2 for blocks of d entries."""
        return rounding.variance_bound(of_blocks.largest_block(num_weights, self.block), 1)

    def expected_error(self, updates: Tensor) -> Tensor:
        """E|Q(x) - x|^2 / |x|^2 of these updates (devices, weights): what `variance` bounds for all."""
        return rounding.expected_error(updates, self.block, 1)

    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The scales, then the signs."""
        scales, codes = rounding.quantise(updates, keys, self.block, 1)
        return torch.cat([of_blocks.as_bytes(scales), packing.pack_trits(codes)], dim=1)

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """Rounded, and not packed."""
        return rounding.arrive(updates, keys, self.block, 1)

    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Refuses scales that are none, and bytes that hold no five signs."""
        blocks = of_blocks.num_blocks(num_weights, self.block)
        scales = of_blocks.read_scales(messages, blocks)
        codes = packing.unpack_trits(messages[:, 4 * blocks :], num_weights)
        return rounding.restore(codes, scales, self.block, 1)
