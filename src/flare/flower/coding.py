"""What nodes send, coded: what the server tells them of it, and the node's side of it.

A message that asks for coded vectors has a record "uplink" which says the codec, its options and what the random draws
depend on. The answer has a record of the same name with the bytes of each vector, and no arrays. Vectors lie in the
order of the arrays that the server sent. With error feedback a node keeps in its context what was lost: as long as it
and the run of Flower last; one that is started again begins without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, final

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor

from flare.rounds import BaseStation, Plan
from flare.rounds.coding import encoded
from flare.rounds.residuals import Part
from flare.uplink import make_codec

UPLINK = "uplink"
"""The record of how vectors are coded, in a question, and of the coded vectors, in an answer."""
_KEPT = "flare.uplink"  # what a node holds back, under this name in its state


@dataclass(frozen=True)
class Coding:
    """How a node codes what it sends in a round."""

    codec: str
    options: str  # JSON
    seed: int
    round: int
    device: int


def coding_record(station: BaseStation, plan: Plan, device: int) -> ConfigRecord:
    """What a node is told that is this device; its bits are those of the plan where they were chosen for it."""
    uplink, own = station.config.uplink, plan.own_codecs.get(device)
    options = uplink.given if own is None else {**uplink.given, "bits": own.bits_per_weight}
    told = Coding(uplink.codec, json.dumps(options), station.config.seed, plan.index, device)
    return ConfigRecord(dict(vars(told)))


@final
class Sender:
    """Codes the vectors of one answer of a node; what they lose is kept when the answer is made."""

    def __init__(self, coding: Coding, context: Context) -> None:
        self._coding, self._context = coding, context
        self._codec = make_codec(coding.codec, json.loads(coding.options))
        self._held = dict(context.state.array_records.get(_KEPT, {}))
        self._messages: dict[str, bytes] = {}

    @classmethod
    def asked(cls, message: Message, context: Context) -> Sender | None:
        """What codes the answer to a message; None where the answer is not to be coded."""
        told = message.content.config_records.get(UPLINK)
        if told is None:
            return None
        values: dict[str, Any] = {each.name: told[each.name] for each in fields(Coding)}
        return cls(Coding(**values), context)

    def add(self, part: Part, vector: Tensor) -> None:
        """Code a vector, shape (weights,); ValueError where it is not finite."""
        coding, vector = self._coding, vector.detach().cpu()
        message, lost = encoded(
            self._codec,
            part,
            vector,
            seed=coding.seed,
            index=coding.round,
            device=coding.device,
            residual=self._residual(part, len(vector)),
        )
        self._messages[part.word] = message
        if lost is not None:
            self._held[part.word] = Array(lost.numpy())

    def record(self) -> ConfigRecord:
        """The coded vectors. Nothing that may fail should follow: they count as sent."""
        if self._held:
            self._context.state[_KEPT] = ArrayRecord(self._held)
        return ConfigRecord(dict(self._messages))

    def _residual(self, part: Part, size: int) -> Tensor | None:
        """What the node holds back of a part; nothing if it is of a model of another size."""
        kept = self._held.get(part.word)
        return None if kept is None or tuple(kept.shape) != (size,) else torch.from_numpy(kept.numpy())
