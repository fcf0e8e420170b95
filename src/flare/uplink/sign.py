"""One bit a weight: the sign, with a scale by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flare.config.setting import check, setting
from flare.uplink import blocks as of_blocks
from flare.uplink import packing
from flare.uplink.codec import Codec, refuse_lost, refuse_not_finite
from flare.uplink.registry import codec


@codec("sign")
@final
@dataclass(frozen=True)
class Sign(Codec):
    """Signs with error feedback (EF-signSGD, Karimireddy et al., 2019): every entry becomes scale or -scale.

    The scale is the mean absolute entry of the block, in float32, which loses least: |Q(x) - x|^2 = |x|^2 - |x|_1^2 / d
    in a block of d entries. A zero counts as positive; a block of zeros stays one. Every finite update is accepted; a
    block whose mean is below the smallest denormal number becomes zeros.
    """

    block: int = setting(of_blocks.BLOCK, "entries that share a scale", at_least=1, at_most=of_blocks.MAX_BLOCK)
    error_feedback: bool = setting(True, "whether a device adds what was lost to its next update")

    unbiased = False

    def __post_init__(self) -> None:
        check(self, "")

    def bits(self, num_weights: int) -> int:
        """1 a weight, filled up to a byte, and 32 for the scale of each block."""
        return 32 * of_blocks.num_blocks(num_weights, self.block) + 8 * packing.packed_bytes(num_weights, 1)

    def variance(self, num_weights: int) -> float:
        """1 - 1 / d, reached by a block with one entry that is not zero."""
        return 1.0 - 1.0 / of_blocks.largest_block(num_weights, self.block)

    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """The scales, then the signs."""
        scales = of_blocks.mean_size(updates, self.block)
        return torch.cat([of_blocks.as_bytes(scales), *packing.pack(updates >= 0.0, 1)], dim=1)

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """Means and signs, and not packed."""
        block = of_blocks.largest_block(updates.shape[1], self.block)
        if updates.is_cuda and block <= of_blocks.MAX_KERNEL_BLOCK and block & (block - 1) == 0:  # a power of two
            from flare.uplink import kernels  # here: Triton is there where GPUs are

            received, lost = kernels.signs(updates.contiguous(), block)
            refuse_lost(lost)
            return received
        scales = of_blocks.mean_size(updates, block)
        refuse_not_finite(scales[:, :, 0])  # means of finite entries are finite, and no others
        positive_zeros = updates + 0.0  # of which there are two: -0 + 0 is 0
        return of_blocks.by_block(_with_sign, positive_zeros, scales, block, out=positive_zeros)

    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Refuses scales that are none."""
        blocks = of_blocks.num_blocks(num_weights, self.block)
        scales = of_blocks.read_scales(messages, blocks)
        positive = packing.unpack(messages[:, 4 * blocks :], num_weights, 1)
        return of_blocks.times_scales(positive.float().mul_(2.0).sub_(1.0), scales, self.block)


def _with_sign(entries: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    return torch.copysign(scales, entries, out=out)
