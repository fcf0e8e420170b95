# mypy: ignore-errors
"""How factors in float32 are rounded or split for tensor cores, inside of Triton kernels.

A number is the sum of two of TF32 (11 bits with the leading one) but for its last bits: the number rounded, and what is
left. Three of the four products of such pairs are added, the small ones first: about the accuracy of float32. Tensor
cores cut off the last bits of every sum, so that an error grows with the number of sums: they add up one step of the
depth at a time, and the steps are added as numbers of float32 are. The compiler can do the same, but it also looks for
nan at every step; here what is infinite becomes nan. The left factor goes to the tensor cores from registers, where it
was split. The compiler hands it over so only where something was computed with it: where it is to be TF32 alone, it is
rounded, while the tensor cores would cut off its last bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

PAIR, ROUNDED = "pair", "rounded"
"""Split in two by hand, which needs a right factor that was split before; both factors rounded by hand. Other
precisions are those that Triton knows."""


@triton.jit
def rounded(x):
    """To TF32. Of nan something else may become: what is left, x - rounded(x), is nan."""
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits + 0x1000) & 0xFFFFE000).to(tl.float32, bitcast=True)


@triton.jit
def to_tf32(x):
    """To TF32; nan stays nan, and what is infinite becomes nan."""
    return rounded(x) + (x - x)


@triton.jit
def add_product(total, left, right, precision: tl.constexpr):
    """total + left right."""
    if precision == "rounded":
        total = tl.dot(to_tf32(left), to_tf32(right), total, input_precision="tf32")
    else:
        total = tl.dot(left, right, total, input_precision=precision)
    return total


@triton.jit
def add_laid_product(total, left, at, plane: tl.constexpr, precision: tl.constexpr):
    """total + left right, with the right factor at some addresses, in two planes where it was split."""
    right = tl.load(at)
    if precision == "pair":
        rest = tl.load(at + plane)
        high = rounded(left)
        of_step = tl.dot(left - high, right, input_precision="tf32")
        of_step = tl.dot(high, rest, of_step, input_precision="tf32")
        total += tl.dot(high, right, of_step, input_precision="tf32")
    elif precision == "tf32":
        total = tl.dot(to_tf32(left), right, total, input_precision="tf32")
    else:
        total = tl.dot(left, right, total, input_precision=precision)
    return total
