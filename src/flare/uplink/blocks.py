"""Updates cut into blocks of entries that share a scale."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 1024
MAX_BLOCK = 1 << 24
MAX_KERNEL_BLOCK = 1 << 14
"""Larger blocks do not fit into one program of a GPU's kernel."""
_SPAN = 1 << 17  # longer ones leave the cache; for shorter ones, calls take longer than the work


def num_blocks(num_weights: int, block: int) -> int:
    """How many blocks an update has; the last one may be shorter."""
    return -(-num_weights // block)


def largest_block(num_weights: int, block: int) -> int:
    """How many entries the largest block of an update has."""
    return min(num_weights, block)


def split(updates: Tensor, block: int) -> Tensor:
    """Updates (devices, weights) as (devices, blocks, entries); the last block is filled up with zeros."""
    devices, num_weights = updates.shape
    block = largest_block(num_weights, block)
    missing = num_blocks(num_weights, block) * block - num_weights
    filled = pad(updates, (0, missing)) if missing else updates
    return filled.reshape(devices, -1, block)


def spans(num_weights: int, device: torch.device, block: int = 1) -> list[slice]:
    """Stretches of whole blocks that are worked on one after the other; all but the last of one length, an even one.

    On a CPU they fit into its cache, and the memory of one serves for the next; on a GPU there is one.
    """
    step = 2 * block * -(-_SPAN // (2 * block)) if device.type == "cpu" else num_weights
    return [slice(begin, min(begin + step, num_weights)) for begin in range(0, num_weights, step)]


def cut(entries: Tensor, block: int) -> list[Tensor]:
    """Entries (devices, weights) by block, (devices, blocks, entries): those that are whole, and then a shorter one."""
    devices, num_weights = entries.shape
    whole, rest = divmod(num_weights, block)
    if not whole:
        return [entries.unsqueeze(1)]
    if not rest:
        return [entries.view(devices, whole, block)]
    first, last = entries.split_with_sizes([num_weights - rest, rest], dim=1)
    return [first.view(devices, whole, block), last.unsqueeze(1)]


def by_block(
    operation: Callable[..., Tensor], entries: Tensor, numbers: Tensor, block: int, out: Tensor | None = None
) -> Tensor:
    """What an operation makes of entries (devices, weights) and the number (devices, blocks, 1) of their blocks."""
    out = torch.empty_like(entries) if out is None else out
    parts = cut(entries, block)
    into = parts if out is entries else cut(out, block)
    own = [numbers] if len(parts) == 1 else numbers.split_with_sizes([parts[0].shape[1], 1], dim=1)
    for part, number, each in zip(parts, own, into, strict=True):
        operation(part, number, out=each)
    return out


def largest(updates: Tensor, block: int) -> Tensor:
    """The largest absolute entry of each block of updates (devices, weights): (devices, blocks, 1)."""
    ends = [(part.amax(dim=2, keepdim=True), part.amin(dim=2, keepdim=True)) for part in cut(updates, block)]
    most, least = ends[0] if len(ends) == 1 else (torch.cat(each, dim=1) for each in zip(*ends, strict=True))
    return torch.maximum(most, least.neg_()).abs_()  # 0 and not -0 for a block of zeros


def times_scales(entries: Tensor, scales: Tensor, block: int) -> Tensor:
    """Entries (devices, weights) times the scales (devices, blocks, 1) of their blocks, written over the entries."""
    return by_block(torch.mul, entries, scales, block, out=entries)


def mean_size(updates: Tensor, block: int) -> Tensor:
    """The mean absolute entry of each block, (devices, blocks, 1), rounded once to float32.

    Summed in float64 by halves, always in this order: neither company nor the kind of processor changes a bit of it.
    """
    block = largest_block(updates.shape[1], block)
    parts = [_mean_size(updates[:, span], block) for span in spans(updates.shape[1], updates.device, block)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _mean_size(updates: Tensor, block: int) -> Tensor:
    num_weights = updates.shape[1]
    missing = num_blocks(num_weights, block) * block - num_weights
    filled = pad(updates, (0, missing)) if missing else updates
    sums = filled.reshape(len(updates), -1, block).abs().double()
    counts = torch.full((sums.shape[1], 1), float(block), dtype=torch.float64, device=updates.device)
    counts[-1] = block - missing
    size = block
    while size > 1:
        half = size // 2
        added = sums[:, :, :half] + sums[:, :, half : 2 * half]
        sums = added if size % 2 == 0 else torch.cat([added, sums[:, :, 2 * half :]], dim=2)
        size -= half
    return (sums / counts).float()


def as_bytes(numbers: Tensor) -> Tensor:
    """Numbers of any type, (devices, ...), as they lie in memory: uint8 (devices, bytes)."""
    return numbers.flatten(1).contiguous().view(torch.uint8)


def read_numbers(part: Tensor, dtype: torch.dtype) -> Tensor:
    """What `as_bytes` has written, (devices, numbers)."""
    return part.clone(memory_format=torch.contiguous_format).view(dtype)


def read_scales(messages: Tensor, blocks: int) -> Tensor:
    """The float32 scales that messages begin with, (devices, blocks, 1); ValueError where one cannot be a scale."""
    scales = read_numbers(messages[:, : 4 * blocks], torch.float32)
    if not bool(((scales >= 0.0) & (scales < torch.inf)).all()):
        raise ValueError("a message has a scale that is negative, infinite or not a number")
    return scales.unsqueeze(2)
