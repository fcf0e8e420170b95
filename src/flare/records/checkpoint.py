"""A snapshot of a run as one file: safetensors that carry their own checksum.

The metadata of the file hold, under the key "flare", a JSON object that begins with a SHA-256. It is the checksum of
the whole file with zeros in the place of the 64 digits themselves, so that no bit of the file is left unchecked and
any reader of safetensors can open it. The same snapshot always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from flare.config.options import is_text

_BLANK = "0" * 64
_BEFORE_DIGEST = rb'"flare":"{\"sha256\":\"'  # JSON inside a JSON text; an unescaped quote occurs in no text
_MAX_HEADER = 100_000_000  # safetensors write no longer one
_CHUNK = 1 << 20
_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What the format calls types of numbers."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that is needed to continue a run after `rounds_done` rounds.

    `numbers` is whatever JSON can hold, with text as keys; floats come back exactly, tuples as lists. Tensors come
    back bit for bit, on the CPU.
    """

    rounds_done: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def encode(snapshot: Snapshot, check: str) -> list[bytes | memoryview]:
    """The content of a checkpoint, in pieces to be written one after the other, before the tensors change: theirs are
    their own memory, where they lie on the CPU.

    `check` is that of the last record before the snapshot: it tells which records the snapshot continues. ValueError
    for a type of numbers that the format does not have.
    """
    facts = {"sha256": _BLANK, "rounds_done": snapshot.rounds_done, "check": check, "numbers": snapshot.numbers}
    header: dict[str, Any] = {"__metadata__": {"flare": json.dumps(facts, separators=(",", ":"))}}
    pieces, end = [], 0
    for name, tensor in sorted(snapshot.tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        kind = _KINDS.get(tensor.dtype)
        if name == "__metadata__" or not is_text(name):
            raise ValueError(f"a checkpoint cannot hold a tensor by the name {name!a:.80}; use another name")
        if kind is None:
            raise ValueError(
                f"'{name}' is a tensor of {tensor.dtype}, which no checkpoint can hold; keep other numbers"
            )
        numbers = tensor.detach().cpu().contiguous()
        in_a_row = numbers.as_strided((numbers.numel(),), (1,))  # of few numbers a stride may say something else
        pieces.append(in_a_row.view(torch.uint8).numpy().data)
        begin, end = end, end + len(pieces[-1])
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of their size: the longest come first
    head = len(text).to_bytes(8, "little") + text
    digest_at = _digest_at(head)
    sha256 = hashlib.sha256(head)
    for piece in pieces:
        sha256.update(piece)
    return [head[:digest_at], sha256.hexdigest().encode(), head[digest_at + len(_BLANK) :], *pieces]


def decode(file: BinaryIO, size: int) -> tuple[Snapshot, str]:
    """The snapshot in an open checkpoint of so many bytes, and the check of the last record before it.

    Raises ValueError where a single bit is not what was written. The tensors are read only after their size and the
    checksum were found right, so that a foreign file takes no memory.
    """
    header = _header(file, size)
    digest_at = _digest_at(header)
    digest_end = digest_at + len(_BLANK)
    sha256 = hashlib.sha256(header[:digest_at] + _BLANK.encode() + header[digest_end:])
    while chunk := file.read(_CHUNK):
        sha256.update(chunk)
    if header[digest_at:digest_end] != sha256.hexdigest().encode():
        raise ValueError("its checksum is wrong")
    try:
        facts = json.loads(json.loads(header[8:])["__metadata__"]["flare"])
        file.seek(0)
        tensors = safetensors.torch.load(file.read(size))
        return Snapshot(int(facts["rounds_done"]), tensors, dict(facts["numbers"])), str(facts["check"])
    except (KeyError, TypeError, RecursionError, SafetensorError) as error:  # sound bytes of some other writer
        raise ValueError(f"it is not a checkpoint of this flare ({error})") from None


def _header(file: BinaryIO, size: int) -> bytes:
    """The first bytes of a safetensors file: the length of a JSON text in 8 bytes, then that text.

    Raises ValueError where the tensors that it lists do not end where the file ends.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(size - 8, _MAX_HEADER):
        raise ValueError("it is not a checkpoint, or cut short: it has no header")
    text = file.read(length)
    try:
        listed = json.loads(text)
        ends = [tensor["data_offsets"][1] for name, tensor in listed.items() if name != "__metadata__"]
        claimed = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise ValueError("it is not a checkpoint: its header cannot be read") from None
    if claimed != size:
        raise ValueError(f"it is not a checkpoint, or cut short: it has {size} bytes, its header says {claimed}")
    return start + text


def _digest_at(header: bytes) -> int:
    found = header.find(_BEFORE_DIGEST)
    if found < 0:
        raise ValueError("it has no checksum")
    return found + len(_BEFORE_DIGEST)
