"""From the devices to the base station: what is sent, what arrives, and what the devices keep of what was lost.

Error feedback (Seide et al., 2014; Stich et al., 2018). A device sends Q(x + e) and keeps e' = x + e - Q(x + e): what
is lost in one round is added to the next. The memory e is a vector for each device that the caller holds, between
rounds and in checkpoints; nothing is hidden in a codec.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flare.uplink.codec import Codec


@dataclass(frozen=True, eq=False)
class Arrived:
    """What arrives of a stack of updates, and what the devices keep."""

    received: Tensor  # (devices, weights): what the base station decodes
    memory: Tensor | None  # (devices, weights): what the devices keep; None for a codec without error feedback


@dataclass(frozen=True, eq=False)
class Sent(Arrived):
    """The same, and how it travelled."""

    messages: Tensor  # (devices, bytes), uint8: what is on the air


def send(codec: Codec, updates: Tensor, keys: Tensor | None = None, memory: Tensor | None = None) -> Sent:
    """Code updates (devices, weights) and decode them again.

    `memory` is what these devices kept when they last sent; None stands for zeros, those of devices that never did.
    Neither it nor the updates are written to.
    """
    wanted = _wanted(codec, updates, memory)
    messages = codec.encode_many(wanted, keys)
    received = codec.decode_many(messages, updates.shape[1])
    return Sent(received, wanted - received if codec.error_feedback else None, messages)


def arrive(codec: Codec, updates: Tensor, keys: Tensor | None = None, memory: Tensor | None = None) -> Arrived:
    """What `send` gives, to the bit, without the messages: what a simulation needs, sooner."""
    wanted = _wanted(codec, updates, memory)
    received = codec.arrive_many(wanted, keys)
    return Arrived(received, wanted - received if codec.error_feedback else None)


def _wanted(codec: Codec, updates: Tensor, memory: Tensor | None) -> Tensor:
    """What the devices would like to arrive: their updates, and what they kept."""
    if memory is not None and not codec.error_feedback:
        raise ValueError(f"{type(codec).__name__} keeps nothing of what is lost; hand it no memory")
    if memory is not None and (memory.shape != updates.shape or memory.dtype != torch.float32):
        raise ValueError(
            f"the memory is {memory.dtype} {tuple(memory.shape)}; it must be float32 {tuple(updates.shape)}, a row for "
            "each update"
        )
    return updates if memory is None else updates + memory.to(updates.device)
