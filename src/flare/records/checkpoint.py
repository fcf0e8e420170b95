"""A snapshot of a run as one file: safetensors that carry their own checksum.

The metadata of the file hold, under the key "flare", a JSON object that begins with a SHA-256. It is the checksum of
the whole file with zeros in the place of the 64 digits themselves, so that no bit of the file is left unchecked and
any reader of safetensors can open it. The same snapshot always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

_BLANK = "0" * 64
_BEFORE_DIGEST = rb'"flare":"{\"sha256\":\"'  # JSON inside a JSON text; an unescaped quote occurs in no text


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that is needed to continue a run after `rounds_done` rounds.

    `numbers` is whatever JSON can hold, with text as keys; floats come back exactly, tuples as lists. Tensors come
    back bit for bit, on the CPU.
    """

    rounds_done: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def encode(snapshot: Snapshot) -> list[bytes | memoryview]:
    """The content of a checkpoint, in pieces to be written one after the other."""
    facts = {"sha256": _BLANK, "rounds_done": snapshot.rounds_done, "numbers": snapshot.numbers}
    # Copies, for safetensors refuse tensors that share memory.
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in snapshot.tensors.items()}
    content = memoryview(safetensors.torch.save(tensors, {"flare": json.dumps(facts, separators=(",", ":"))}))
    digest_at = _digest_at(content)
    digest = hashlib.sha256(content).hexdigest()
    return [content[:digest_at], digest.encode(), content[digest_at + len(_BLANK) :]]


def decode(content: bytes) -> Snapshot:
    """The snapshot in the content of a checkpoint; ValueError where a single bit of it is not what was written."""
    view = memoryview(content)
    digest_at = _digest_at(view)
    digest_end = digest_at + len(_BLANK)
    sha256 = hashlib.sha256(view[:digest_at])
    sha256.update(_BLANK.encode())
    sha256.update(view[digest_end:])
    if view[digest_at:digest_end] != sha256.hexdigest().encode():
        raise ValueError("its checksum is wrong")
    try:
        facts = json.loads(json.loads(_header(view))["__metadata__"]["flare"])
        return Snapshot(int(facts["rounds_done"]), safetensors.torch.load(content), dict(facts["numbers"]))
    except (KeyError, TypeError, SafetensorError) as error:  # sound bytes of some other writer
        raise ValueError(f"it is not a checkpoint of flare ({error})") from None


def _header(content: memoryview) -> bytes:
    """The JSON at the start of a safetensors file, whose length is in its first 8 bytes."""
    return bytes(content[8 : 8 + int.from_bytes(content[:8], "little")])


def _digest_at(content: memoryview) -> int:
    found = _header(content).find(_BEFORE_DIGEST)
    if found < 0:
        raise ValueError("it has no checksum")
    return 8 + found + len(_BEFORE_DIGEST)
