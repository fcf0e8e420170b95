"""What a codec is: how an update becomes bytes on a device, and an update again at the base station.

A codec is made of its options alone and holds nothing between calls. It works on stacks of updates, float32 of shape
(devices, weights), with torch operations on whatever device the stack is on; each row is coded by itself, so that an
update becomes the same bytes alone and in company, on a CPU and on a GPU.

    bits(n)              what an update of n weights takes on the air, known before anything is computed. It is 8 times
                         the length of the message to the bit: scales, indices and the bits that fill the last byte
                         are in it, and nothing is sent beside it
    variance(n)          w, proven: E|Q(x) - x|^2 <= w |x|^2 for every update x that is accepted, beside float32
                         rounding. For a codec that is not unbiased it is the same bound on its error
    unbiased             whether E Q(x) = x, beside float32 rounding
    error_feedback       whether a device keeps what was lost and adds it to its next update (`flare.uplink.send`)
    draws                whether it draws random numbers: then it needs a key for each update (`flare.uplink.keys`)

Updates with an entry that is infinite or not a number are refused (`NotFiniteError`), except by a codec that says
`keeps_everything`.

`arrive_many` gives what the base station decodes of what the devices encode, to the bit, without laying out messages:
a simulation needs no more, as their length is known. Codecs may have an `arrive` of their own for it, to be quick.

Messages come from others: what `encode` cannot have produced is refused with a ValueError before
anything is allocated that depends on it, and what is decoded is finite.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_WEIGHTS = 2**31 - 1
"""Updates of more weights are refused."""
MAX_BITS = 2**40
"""Longer messages are none."""
_ENTRIES_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 26}  # worked on together at most: what fits a cache, or fills a GPU
_ROWS_AT_ONCE = {"cpu": 16, "cuda": 256}  # of which a codec computes together at most


class NotFiniteError(ValueError):
    """Updates that cannot be coded, as they have infinite entries or such that are not a number; `rows` says which."""

    def __init__(self, rows: Sequence[int], devices: int) -> None:
        self.rows = tuple(rows)
        which = "the update" if devices == 1 else f"update {self.rows[0]} of {devices}"
        super().__init__(
            f"{which} has an entry that is infinite or not a number, which no scale can hold: training has diverged; "
            'lower the learning rate, or send such updates with codec "none"'
        )


class Codec(ABC):
    """How updates travel. A codec of one's own says `unbiased`, and has `bits`, `variance`, `pack` and `unpack`."""

    unbiased: bool
    error_feedback: bool = False
    draws: bool = False
    keeps_everything: bool = False

    @abstractmethod
    def bits(self, num_weights: int) -> int:
        """The length of a message in bits, a multiple of 8."""

    @abstractmethod
    def variance(self, num_weights: int) -> float:
        """A proven w with E|Q(x) - x|^2 <= w |x|^2."""

    @abstractmethod
    def pack(self, updates: Tensor, keys: Tensor) -> Tensor:
        """Messages, uint8 of shape (devices, bits / 8), of finite updates (devices, weights) and keys (devices,)."""

    @abstractmethod
    def unpack(self, messages: Tensor, num_weights: int) -> Tensor:
        """Updates, float32 of shape (devices, weights), from messages of the right length; else ValueError."""

    def arrive(self, updates: Tensor, keys: Tensor) -> Tensor:
        """What `unpack` makes of what `pack` makes of updates (devices, weights); NotFiniteError where one is not
        finite, unless the codec keeps everything."""
        if not self.keeps_everything:
            refuse_not_finite(updates)
        return self._unpacked(self._packed(updates, keys), updates.shape[1])

    def encode(self, update: Tensor, key: int = 0) -> bytes:
        """The message of one update, float32 of shape (weights,)."""
        if update.ndim != 1:
            raise ValueError(f"an update has the shape {tuple(update.shape)}; it must be flat, (weights,)")
        keys = torch.tensor([key], dtype=torch.int64, device=update.device)
        return bytes(self.encode_many(update.detach().unsqueeze(0), keys)[0].cpu().numpy())

    def decode(self, message: bytes | bytearray | memoryview, num_weights: int) -> Tensor:
        """The update that a message stands for, on the CPU; ValueError where it is no message of this codec."""
        check_num_weights(num_weights)
        if not isinstance(message, bytes | bytearray | memoryview):
            raise ValueError(f"a message is a {type(message).__name__}; it must be bytes")
        length = message.nbytes if isinstance(message, memoryview) else len(message)
        self._check_length(length, num_weights)
        copy = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        return self.decode_many(copy.unsqueeze(0), num_weights)[0]

    def encode_many(self, updates: Tensor, keys: Tensor | None = None) -> Tensor:
        """The messages of a stack of updates (devices, weights), uint8 of shape (devices, bytes), where they are.

        `keys` (devices,) fixes the random draws; it may be left out for codecs that draw nothing.
        """
        keys = self._checked_keys(updates, keys)
        if not self.keeps_everything:
            refuse_not_finite(updates)
        portions = _portions(len(updates), updates.shape[1], updates.device)
        if len(portions) == 1:
            return self._packed(updates, keys)
        size = self.checked_bits(updates.shape[1]) // 8
        messages = torch.empty(len(updates), size, dtype=torch.uint8, device=updates.device)
        for rows in portions:
            messages[rows] = self._packed(updates[rows], keys[rows])
        return messages

    def arrive_many(self, updates: Tensor, keys: Tensor | None = None) -> Tensor:
        """`decode_many(encode_many(updates, keys), weights)`, sooner."""
        keys = self._checked_keys(updates, keys)
        portions = _portions(len(updates), updates.shape[1], updates.device)
        if len(portions) == 1:
            return self.arrive(updates, keys)
        received, lost = torch.empty_like(updates), []
        for rows in portions:
            try:
                received[rows] = self.arrive(updates[rows], keys[rows])
            except NotFiniteError as error:  # all of them are named
                lost += [rows.start + row for row in error.rows]
        if lost:
            raise NotFiniteError(lost, len(updates))
        return received

    def decode_many(self, messages: Tensor, num_weights: int) -> Tensor:
        """The updates (devices, weights) of a stack of messages, where they are; ValueError where one is none."""
        check_num_weights(num_weights)
        if messages.ndim != 2 or messages.dtype != torch.uint8:
            raise ValueError(f"messages are {messages.dtype} {tuple(messages.shape)}; give uint8 of (devices, bytes)")
        self._check_length(messages.shape[1], num_weights)
        portions = _portions(len(messages), num_weights, messages.device)
        if len(portions) == 1:
            return self._unpacked(messages, num_weights)
        updates = torch.empty(len(messages), num_weights, device=messages.device)
        for rows in portions:
            updates[rows] = self._unpacked(messages[rows], num_weights)
        return updates

    def checked_bits(self, num_weights: int) -> int:
        """`bits`, where it is a length that a message can have: a codec may be a user's own."""
        bits = self.bits(num_weights)
        if type(bits) is not int or not 0 < bits <= MAX_BITS or bits % 8:
            raise ValueError(
                f"{type(self).__name__}: its bits({num_weights}) answered {str(bits)[:40]}; it must answer a whole "
                "number of bits, a multiple of 8 above 0: 8 times the length of what pack gives"
            )
        return bits

    def _packed(self, updates: Tensor, keys: Tensor) -> Tensor:
        """What `pack` answers, if it is as long as `bits` says."""
        messages, wanted = self.pack(updates, keys), (len(updates), self.checked_bits(updates.shape[1]) // 8)
        kind = f"{messages.dtype} {tuple(messages.shape)}" if isinstance(messages, Tensor) else type(messages).__name__
        if not isinstance(messages, Tensor) or messages.dtype != torch.uint8 or messages.shape != wanted:
            raise ValueError(
                f"{type(self).__name__}: its pack answered {kind} for {len(updates)} updates of {updates.shape[1]} "
                f"weights; by its bits it must answer torch.uint8 {wanted}, and what bits says is what the clock is "
                "charged: let the two agree"
            )
        return messages

    def _unpacked(self, messages: Tensor, num_weights: int) -> Tensor:
        """What `unpack` answers, if it has the right shape: a codec may be a user's own."""
        updates, wanted = self.unpack(messages, num_weights), (len(messages), num_weights)
        sound = isinstance(updates, Tensor) and updates.dtype == torch.float32 and updates.layout == torch.strided
        if not sound or updates.shape != wanted or updates.device != messages.device:
            told = f"{updates.dtype} {tuple(updates.shape)}" if isinstance(updates, Tensor) else type(updates).__name__
            raise ValueError(
                f"{type(self).__name__}: its unpack answered {told} for {len(messages)} messages of {num_weights} "
                f"weights each; it must answer a dense torch.float32 {wanted} where the messages are"
            )
        return updates.detach()

    def _checked_keys(self, updates: Tensor, keys: Tensor | None) -> Tensor:
        """A key for each update, where they are; ValueError for tensors that are no updates or no keys."""
        _check_stack(updates)
        if keys is None:
            if self.draws:
                raise ValueError(
                    f"{type(self).__name__} draws random numbers: give a key for each update (uplink.keys)"
                )
            keys = torch.zeros(len(updates), dtype=torch.int64, device=updates.device)
        if keys.shape != (len(updates),) or keys.dtype != torch.int64:
            raise ValueError(f"keys are {keys.dtype} {tuple(keys.shape)}; give one int64 for each update")
        return keys.to(updates.device)

    def _check_length(self, length: int, num_weights: int) -> None:
        wanted = self.checked_bits(num_weights) // 8
        if length != wanted:
            raise ValueError(
                f"a message has {length} bytes; {type(self).__name__} sends {wanted} for {num_weights} weights"
            )


def check_num_weights(num_weights: int) -> None:
    """ValueError for a number of weights that no update has."""
    if not isinstance(num_weights, int) or not 1 <= num_weights <= MAX_WEIGHTS:
        raise ValueError(
            f"an update has {num_weights} weights; it must have a whole number of them, 1 to {MAX_WEIGHTS}"
        )


def _check_stack(updates: Tensor) -> None:
    if updates.ndim != 2 or updates.dtype != torch.float32:
        raise ValueError(f"updates are {updates.dtype} {tuple(updates.shape)}; give float32 of (devices, weights)")
    check_num_weights(updates.shape[1])


def refuse_not_finite(updates: Tensor) -> None:
    """NotFiniteError where updates (devices, weights) have entries that are infinite or not a number."""
    if len(updates) == 0 or math.isfinite(updates.sum()):  # no sum with such an entry is
        return
    refuse_lost(~torch.isfinite(torch.stack([updates.amin(dim=1), updates.amax(dim=1)])).all(0))  # of NaN, both are NaN


def refuse_lost(lost: Tensor) -> None:
    """NotFiniteError where one of the updates is marked as not finite (devices,)."""
    if bool(lost.any()):
        raise NotFiniteError(lost.nonzero()[:, 0].tolist(), len(lost))


def row_portions(rows: int, num_weights: int, device: torch.device, *, max_rows: int | None = None) -> list[slice]:
    """Rows that are worked on together: the answers do not depend on it, memory and time do."""
    step = max(1, _ENTRIES_AT_ONCE.get(device.type, 1) // num_weights)
    step = step if max_rows is None else min(step, max_rows)
    return [slice(start, start + step) for start in range(0, rows, step)]


def _portions(devices: int, num_weights: int, device: torch.device) -> list[slice]:
    """Those of what a codec itself computes."""
    return row_portions(devices, num_weights, device, max_rows=_ROWS_AT_ONCE.get(device.type, 1))
